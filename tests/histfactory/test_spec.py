from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyhf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.histfactory.spec import Specification, parse
from firstlight.histfactory.workspace_file import WorkspaceError

# pyhf 0.7.6 validates with a class that jsonschema has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")

Plain = dict[str, Any]


def modifier(kind: str, name: str, data: Any = None) -> Plain:
    return {"name": name, "type": kind, "data": data}


def normsys(name: str, lo: float = 0.9, hi: float = 1.1) -> Plain:
    return modifier("normsys", name, {"lo": lo, "hi": hi})


def histosys(name: str, lo: list[float], hi: list[float]) -> Plain:
    return modifier("histosys", name, {"lo_data": lo, "hi_data": hi})


def sample(name: str, data: list[float], *modifiers: Plain) -> Plain:
    return {"name": name, "data": data, "modifiers": list(modifiers)}


def lumi() -> Plain:
    return {
        "name": "lumi",
        "inits": [1.0],
        "bounds": [[0.5, 1.5]],
        "auxdata": [1.0],
        "sigmas": [0.02],
    }


def full() -> Plain:
    """All seven modifiers, unsorted, with shared names, bad bins and two measurements."""
    return {
        "channels": [
            {
                "name": "SR",
                "samples": [
                    sample(
                        "ttbar",
                        [50.0, 0.0, -1.0],
                        normsys("zeta", 0.8, 1.3),
                        histosys("jes", [45.0, 0.5, -1.0], [56.0, 0.0, -2.0]),
                        normsys("jes"),
                        modifier("staterror", "stat_SR", [3.0, 0.0, 0.5]),
                        modifier("shapesys", "mc", [5.0, 1.0, 2.0]),
                        modifier("lumi", "lumi"),
                    ),
                    sample(
                        "signal",
                        [5, 10, 0],
                        modifier("normfactor", "mu"),
                        modifier("lumi", "lumi"),
                        modifier("staterror", "stat_SR", [1, 0, 0]),
                        normsys("alpha"),
                    ),
                    sample("fakes", [7.0, 8.0, 9.0], modifier("shapefactor", "free")),
                ],
            },
            {
                "name": "CR",
                "samples": [
                    sample(
                        "ttbar",
                        [500.0, 600.0],
                        modifier("staterror", "stat_CR", [10.0, 0.0]),
                        modifier("normfactor", "k_tt"),
                        histosys("jes", [450.0, 580.0], [560.0, 630.0]),
                        normsys("beta"),
                        modifier("shapesys", "mc_CR", [5.0, 0.0]),
                    ),
                    sample("qcd", [3.0, 4.0], modifier("shapefactor", "qcd_shape")),
                ],
            },
        ],
        "observations": [{"name": "SR", "data": [60, 20, 8]}, {"name": "CR", "data": [505, 601]}],
        "measurements": [
            {
                "name": "main",
                "config": {
                    "poi": "mu",
                    "parameters": [
                        lumi(),
                        {"name": "mu", "bounds": [[-5.0, 20.0]], "inits": [0.5]},
                        {"name": "jes", "fixed": True, "inits": [0.25], "auxdata": [0.1]},
                        {"name": "mc", "factors": [90.0, 2.0, 3.0], "auxdata": [91.0, 0.0, 3.0]},
                        {"name": "stat_CR", "sigmas": [0.5, 0.25], "fixed": False},
                        {"name": "of_another_fit", "inits": [3.0]},
                    ],
                },
            },
            {"name": "no poi", "config": {"poi": "", "parameters": [{**lumi(), "fixed": True}]}},
        ],
        "version": "1.0.0",
    }


def assert_as_pyhf(spec: Specification, model: pyhf.Model) -> None:
    config = model.config
    assert [one.name for one in spec.parameter_sets] == config.par_order
    assert list(spec.parameter_names) == config.par_names
    assert [channel.name for channel in spec.channels] == config.channels
    assert {c.name: c.bins for c in spec.channels} == config.channel_nbins
    assert spec.poi == config.poi_name

    def joined(field: str) -> list[Any]:
        return [value for one in spec.parameter_sets for value in getattr(one, field).tolist()]

    assert joined("init") == config.suggested_init()
    bounds = zip(joined("lower"), joined("upper"), strict=True)
    assert list(bounds) == [tuple(pair) for pair in config.suggested_bounds()]
    assert joined("fixed") == config.suggested_fixed()
    constrained = [one for one in spec.parameter_sets if one.auxdata is not None]
    assert [one.name for one in constrained] == config.auxdata_order
    auxdata = [value for one in constrained for value in one.auxdata]
    np.testing.assert_allclose(auxdata, config.auxdata, rtol=1e-14)
    for one in spec.parameter_sets:
        theirs = config.param_set(one.name)
        assert one.scalar == theirs.is_scalar and one.size == theirs.n_parameters
        assert one.constraint == getattr(theirs, "pdf_type", None)
        assert one.types == tuple(sorted({t for n, t in config.modifiers if n == one.name}))
        if one.constraint == "normal":
            np.testing.assert_allclose(one.sigma, theirs.width(), rtol=1e-14)
        if one.constraint == "poisson":
            np.testing.assert_allclose(one.factor, theirs.factors, rtol=1e-14)


@pytest.mark.parametrize("measurement", [None, "main", "no poi", 1, -2])
def test_parameters_of_all_seven_modifiers_are_those_of_pyhf(measurement: str | int | None) -> None:
    workspace = pyhf.Workspace(full())
    chosen = (
        {"measurement_name": measurement}
        if isinstance(measurement, str)
        else {"measurement_index": measurement}
    )
    model = workspace.model(**chosen)
    spec = parse(full(), measurement=measurement)
    assert_as_pyhf(spec, model)
    assert spec.observed is not None
    assert spec.observed.tolist() == workspace.data(model, include_auxdata=False)
    assert spec.measurement == workspace.get_measurement(**chosen)["name"]


def test_a_file_and_its_content_give_the_same_specification(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    # With the mark that some editors of Windows put in front.
    path.write_text(json.dumps(full()), encoding="utf-8-sig")
    spec = parse(path)
    assert spec.source == str(path)
    assert_as_pyhf(spec, pyhf.Workspace(full()).model())


def test_everything_is_sorted_and_nothing_can_be_written_to() -> None:
    spec = parse(full())
    for channel in spec.channels:
        names = [one.name for one in channel.samples]
        assert names == sorted(names)
        for one in channel.samples:
            keys = [(m.name, m.type) for m in one.modifiers]
            assert keys == sorted(keys)
            assert not one.nominal.flags.writeable
    for parameters in spec.parameter_sets:
        for field in ("init", "lower", "upper", "fixed", "auxdata", "sigma", "factor"):
            array = getattr(parameters, field)
            assert array is None or not array.flags.writeable
    assert spec.observed is not None and not spec.observed.flags.writeable


def test_modifiers_carry_the_numbers_of_the_file() -> None:
    spec = parse(full())
    ttbar = spec.channels[1].samples[2]
    by_key = {(m.name, m.type): m for m in ttbar.modifiers}
    assert (by_key["zeta", "normsys"].lo, by_key["zeta", "normsys"].hi) == (0.8, 1.3)
    jes = by_key["jes", "histosys"]
    assert isinstance(jes.lo, np.ndarray) and jes.lo.tolist() == [45.0, 0.5, -1.0]
    stat = by_key["stat_SR", "staterror"].uncertainty
    assert stat is not None and stat.tolist() == [3.0, 0.0, 0.5]
    assert ttbar.nominal.tolist() == [50.0, 0.0, -1.0]


def model_of(*channels: tuple[str, list[Plain]], **more: Any) -> Plain:
    return {"channels": [{"name": n, "samples": s} for n, s in channels], **more}


def both(spec: Plain, poi: str = "mu") -> tuple[Specification, pyhf.Model]:
    ours = parse({**spec, "poi": poi}, require_observations=False)
    return ours, pyhf.Model(spec, poi_name=poi)


def test_a_model_specification_needs_no_data_and_its_poi_is_mu_by_default() -> None:
    plain = pyhf.simplemodels.uncorrelated_background([5.0, 6.0], [50.0, 60.0], [7.0, 8.0]).spec
    spec = parse(plain, require_observations=False)
    assert spec.observed is None and spec.poi == "mu" and spec.measurement == ""
    assert_as_pyhf(spec, pyhf.Model(plain, poi_name="mu"))  # pyhf 0.7.6 needs no name
    assert parse({**plain, "poi": ""}, require_observations=False).poi is None
    with pytest.raises(WorkspaceError, match=r"without data\. Give the workspace"):
        parse(plain)
    with pytest.raises(WorkspaceError, match="no measurement 'x' to choose"):
        parse(plain, measurement="x", require_observations=False)


def test_a_staterror_of_two_channels_has_the_bins_of_both() -> None:
    stat = [modifier("staterror", "stat", [1.0, 2.0]), modifier("normfactor", "mu")]
    wide = [modifier("staterror", "stat", [3.0, 4.0, 0.0])]
    spec = model_of(
        ("B", [sample("b", [20.0, 30.0], *stat), sample("a", [4.0, 5.0], stat[0])]),
        ("A", [sample("b", [9.0, 0.0, 2.0], *wide), sample("a", [1.0, 0.0, 2.0], *wide)]),
    )
    ours, theirs = both(spec)
    assert_as_pyhf(ours, theirs)
    assert ours.parameter_sets[-1].size == 5


def test_a_staterror_on_other_samples_in_another_channel_is_refused_as_by_pyhf() -> None:
    one = modifier("staterror", "stat", [1.0])
    spec = model_of(("A", [sample("a", [5.0], one)]), ("B", [sample("b", [5.0], one)]))
    with pytest.raises(AssertionError):
        pyhf.Model(spec, poi_name="")
    with pytest.raises(
        WorkspaceError, match=r"sample 'a' has it in channel 'A', sample 'b' in 'B'"
    ):
        parse(spec, require_observations=False)


def test_a_shapefactor_of_a_smaller_second_channel_is_that_of_pyhf() -> None:
    free = modifier("shapefactor", "free")
    mu = modifier("normfactor", "mu")
    spec = model_of(
        ("A", [sample("a", [1.0, 2.0, 3.0], free, mu)]), ("B", [sample("a", [5.0, 6.0], free)])
    )
    assert_as_pyhf(*both(spec))


def test_a_shapefactor_of_a_larger_second_channel_is_refused_because_pyhf_computes_nonsense() -> (
    None
):
    free = modifier("shapefactor", "free")
    mu = modifier("normfactor", "mu")
    spec = model_of(
        ("A", [sample("a", [1.0, 2.0], free, mu)]), ("B", [sample("a", [5.0, 6.0, 7.0], free)])
    )
    # Three bins, two parameters: the last bin is multiplied by `mu`, whom it does not concern.
    assert pyhf.Model(spec).expected_data([3.0, 1.0, 1.0]).tolist()[-1] == 21.0
    with pytest.raises(
        WorkspaceError, match=r"'free' .shapefactor.: has one value for each of the 2"
    ):
        parse(spec, require_observations=False)


def test_a_poi_with_one_bin_may_be_a_shapefactor() -> None:
    assert_as_pyhf(
        *both(model_of(("A", [sample("a", [1.0], modifier("shapefactor", "f"))])), poi="f")
    )


def test_numpy_arrays_in_a_mapping_are_read_as_lists() -> None:
    plain = full()
    plain["channels"][0]["samples"][0]["data"] = np.array([50.0, 0.0, -1.0])
    plain["observations"][0]["data"] = (np.int64(60), np.float32(20), 8)
    spec = parse(plain)
    assert spec.observed is not None and spec.observed.tolist() == [505, 601, 60, 20, 8]


def test_a_finite_list_whose_sum_overflows_is_accepted() -> None:
    spec = model_of(("A", [sample("a", [1e308, 1e308], modifier("normfactor", "mu"))]))
    assert parse(spec, require_observations=False).channels[0].samples[0].nominal.max() == 1e308


def test_a_luminosity_without_sigmas_has_the_width_one_of_pyhf() -> None:
    spec = model_of(
        ("A", [sample("a", [1.0], modifier("lumi", "lumi"), modifier("normfactor", "mu"))]),
        parameters=[{key: value for key, value in lumi().items() if key != "sigmas"}],
    )
    assert_as_pyhf(*both(spec))


# --- What pyhf does with a generated workspace, and what we do ---

YIELDS = st.one_of(st.floats(-2.0, 100.0, width=32), st.integers(0, 50))
ERRORS = st.one_of(st.just(0.0), st.floats(0.01, 10.0))
NAMES = st.sampled_from(["b", "B", "a1", "a10", "a2", "ä", "Z/x", ""])


def stat_name(channel: str) -> str:
    return "stat " + channel.replace("/", "|")  # with a slash pyhf loses the parameter


@st.composite
def samples(draw: Any, channel: str, bins: int) -> Iterator[Plain]:
    def values(strategy: Any) -> list[float]:
        return draw(st.lists(strategy, min_size=bins, max_size=bins))

    result = []
    carries_staterror = draw(st.booleans())
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        factor = st.floats(0.1, 3.0)
        mods = [normsys(n, draw(factor), draw(factor)) for n in draw(st.sets(NAMES, max_size=3))]
        for other in draw(st.sets(NAMES, max_size=2)):
            mods.append(histosys(other, values(YIELDS), values(YIELDS)))
        for other in draw(st.sets(st.sampled_from(["mu", "k1", "k0"]), max_size=2)):
            mods.append(modifier("normfactor", other))
        if draw(st.booleans()):
            mods.append(modifier("lumi", "lumi"))
        if draw(st.booleans()):
            mods.append(modifier("shapefactor", f"free{bins}"))
        if draw(st.booleans()):
            mods.append(modifier("shapesys", f"mc {channel} {name}", values(ERRORS)))
        if carries_staterror and draw(st.booleans()):
            mods.append(modifier("staterror", stat_name(channel), values(ERRORS)))
        result.append(sample(name, values(YIELDS), *draw(st.permutations(mods))))
    result[0]["modifiers"].append(modifier("normfactor", "poi"))
    return result


@st.composite
def workspaces(draw: Any) -> Plain:
    channels = [
        {"name": name, "samples": draw(samples(name, draw(st.integers(1, 3))))}
        for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    ]
    parameters: list[Plain] = [lumi()]
    for name in draw(st.sets(NAMES, max_size=3)):
        parameters.append({"name": name, "inits": [draw(st.floats(-5, 5))]})
        if draw(st.booleans()):
            parameters[-1]["fixed"] = draw(st.booleans())
        if draw(st.booleans()):
            parameters[-1]["auxdata"] = [draw(st.floats(-5, 5))]
    if draw(st.booleans()):
        parameters.append({"name": stat_name(channels[0]["name"]), "fixed": draw(st.booleans())})
    return {
        "channels": channels,
        "observations": [
            {"name": c["name"], "data": [1.0] * len(c["samples"][0]["data"])} for c in channels
        ],
        "measurements": [{"name": "m", "config": {"poi": "poi", "parameters": parameters}}],
        "version": "1.0.0",
    }


@given(workspaces())
@settings(deadline=None, max_examples=60)
def test_parameters_of_any_workspace_are_those_of_pyhf(workspace: Plain) -> None:
    assert_as_pyhf(parse(workspace), pyhf.Workspace(workspace).model())


# --- Malformed workspaces, one fault at a time ---

Edit = Callable[[Plain], Any]
FIRST = "channel 'SR', sample 'ttbar'"


def at(plain: Any, *keys: Any) -> Any:
    for key in keys:
        plain = plain[key]
    return plain


def put(*path: Any) -> Edit:
    """An edit: the last entry becomes the value at the path before it."""
    *keys, last, value = path

    def edit(plain: Plain) -> None:
        at(plain, *keys)[last] = value

    return edit


def drop(*path: Any) -> Edit:
    def edit(plain: Plain) -> None:
        del at(plain, *path[:-1])[path[-1]]

    return edit


def ttbar(index: int, *path: Any) -> Edit:
    """An edit of modifier `index` of the first sample."""
    return put("channels", 0, "samples", 0, "modifiers", index, *path)


def setting(**values: Any) -> Edit:
    return put("measurements", 0, "config", "parameters", [lumi(), values])


def duplicate(*path: Any) -> Edit:
    def edit(plain: Plain) -> None:
        entries = at(plain, *path)
        entries.append(copy.deepcopy(entries[0]))

    return edit


MALFORMED: dict[str, tuple[Edit, str]] = {
    "no channels": (drop("channels"), "has no 'channels'. Add it."),
    "channels null": (put("channels", None), "channels must be an array, not null."),
    "channels empty": (put("channels", []), "channels is empty; at least 1 entry is needed."),
    "unknown top key": (put("chanels", []), "has the unknown key 'chanels'. Known: channels, "),
    "another version": (put("version", "2.0.0"), "version is the string '2.0.0'; only '1.0.0'"),
    "channel is text": (
        put("channels", 0, "SR"),
        "channel number 0: must be an object, not the string 'SR'.",
    ),
    "channel name": (put("channels", 0, "name", 5), "channel number 0: name must be a string"),
    "two channels": (duplicate("channels"), "channel 'SR': there are two channels with this name."),
    "two samples": (
        duplicate("channels", 0, "samples"),
        f"{FIRST}: the channel has two samples with this name. Rename one.",
    ),
    "sample key": (
        put("channels", 0, "samples", 0, "modifers", []),
        f"{FIRST}: has the unknown key 'modifers'. Known: data, modifiers, name.",
    ),
    "sample bins": (
        put("channels", 0, "samples", 1, "data", [1.0]),
        "channel 'SR', sample 'signal': data has 1 bins, the channel has 3. Give every template",
    ),
    "nominal is text": (
        put("channels", 0, "samples", 0, "data", 1, "4.0"),
        f"{FIRST}: data[1] must be a number, not the string '4.0'.",
    ),
    "nominal true": (
        put("channels", 0, "samples", 0, "data", 1, True),
        f"{FIRST}: data[1] must be a number, not true.",
    ),
    "nominal null": (
        put("channels", 0, "samples", 0, "data", 1, None),
        f"{FIRST}: data[1] must be a number, not null.",
    ),
    "nominal nan": (
        put("channels", 0, "samples", 0, "data", 1, math.nan),
        f"{FIRST}: data[1] is nan. Give a finite number.",
    ),
    "nominal infinite": (
        put("channels", 0, "samples", 0, "data", 1, -math.inf),
        f"{FIRST}: data[1] is -inf. Give a finite number.",
    ),
    "nominal huge": (
        put("channels", 0, "samples", 0, "data", 1, 10**400),
        f"{FIRST}: data[1] is a number too large for a double. Give a finite number.",
    ),
    "nominal empty": (put("channels", 0, "samples", 0, "data", []), f"{FIRST}: data is empty"),
    "modifier type": (
        ttbar(0, "type", "overallsys"),
        (
            f"{FIRST}, modifier 'zeta' (overallsys): type is the string 'overallsys'. The types "
            "are histosys, lumi, normfactor, normsys, shapefactor, shapesys, staterror."
        ),
    ),
    "modifier without type": (
        drop("channels", 0, "samples", 0, "modifiers", 0, "type"),
        f"{FIRST}, modifier 'zeta': type is null.",
    ),
    "modifier unhashable": (ttbar(0, "type", []), f"{FIRST}, modifier 'zeta': type is an array."),
    "modifier key": (ttbar(0, "dat", 0), "modifier 'zeta' (normsys): has the unknown key 'dat'."),
    "modifier twice": (
        duplicate("channels", 0, "samples", 0, "modifiers"),
        f"{FIRST}, modifier 'zeta' (normsys): the sample has this modifier twice.",
    ),
    "histosys bins": (
        ttbar(1, "data", "hi_data", [1.0, 2.0]),
        f"{FIRST}, modifier 'jes' (histosys): hi_data has 2 bins, the channel has 3.",
    ),
    "histosys keys": (
        ttbar(1, "data", {"hi": [1.0], "lo": [2.0]}),
        f"{FIRST}, modifier 'jes' (histosys): data has no 'lo_data'. Add it.",
    ),
    "normsys zero": (
        ttbar(0, "data", {"lo": 0, "hi": 1.1}),
        f"{FIRST}, modifier 'zeta' (normsys): lo is 0.0. This factor",
    ),
    "normsys negative": (
        ttbar(0, "data", {"lo": 0.9, "hi": -0.1}),
        f"{FIRST}, modifier 'zeta' (normsys): hi is -0.1. This factor",
    ),
    "normsys array": (ttbar(0, "data", [0.9, 1.1]), "data must be an object, not an array."),
    "normsys extra": (
        ttbar(0, "data", {"lo": 0.9, "hi": 1.1, "mid": 1.0}),
        "modifier 'zeta' (normsys): data has the unknown key 'mid'. Known: hi, lo.",
    ),
    "staterror bins": (
        ttbar(3, "data", [1.0]),
        f"{FIRST}, modifier 'stat_SR' (staterror): data has 1 bins, the channel has 3.",
    ),
    "shapesys is a number": (ttbar(4, "data", 3), "'mc' (shapesys): data must be an array, not"),
    "shapesys overflow": (
        ttbar(4, "data", [1e-300, 1.0, 1.0]),
        "parameter 'mc' (shapesys): bin 0 of channel 'SR', sample 'ttbar' has yield 50.0",
    ),
    "shapesys shared": (
        put("channels", 1, "samples", 0, "modifiers", 4, "name", "mc"),
        "parameter 'mc' (shapesys): is a shapesys of channel 'CR', sample 'ttbar' and of",
    ),
    "staterror overflow": (
        ttbar(3, "data", [1e300, 0.0, 0.0]),
        "parameter 'stat_SR' (staterror): the relative uncertainty of bin 0 is too large",
    ),
    "lumi name": (
        ttbar(5, "name", "luminosity"),
        "modifier 'luminosity' (lumi): a modifier of type lumi must be named 'lumi'.",
    ),
    "lumi data": (ttbar(5, "data", 1.0), "modifier 'lumi' (lumi): data must be null, not the"),
    "lumi unset": (
        put("measurements", 0, "config", "parameters", []),
        (
            "parameter 'lumi' (lumi): the measurement does not set its inits, bounds, auxdata. The "
            'luminosity has no default. Add to the parameters of the measurement: {"name": "lumi", '
        ),
    ),
    "name of two types": (
        ttbar(0, "name", "mu"),
        (
            "measurement 'main', parameter 'mu' (normfactor, normsys): is used by normfactor ("
            "channel 'SR', sample 'signal') and normsys (channel 'SR', sample 'ttbar'). Only"
        ),
    ),
    "poi unknown": (
        put("measurements", 0, "config", "poi", "k_t"),
        (
            "measurement 'main': the parameter of interest 'k_t' is not in the model. Did you mean "
            "'k_tt'?"
        ),
    ),
    "poi far off": (
        put("measurements", 0, "config", "poi", "SigXsecOverSM"),
        "the parameter of interest 'SigXsecOverSM' is not in the model. It has 'jes',",
    ),
    "poi null": (put("measurements", 0, "config", "poi", None), "poi must be the name of a"),
    "poi of bins": (
        put("measurements", 0, "config", "poi", "free"),
        "the parameter of interest 'free' has 3 components. Choose one, such as 'free[0]'",
    ),
    "config key": (
        put("measurements", 0, "config", "POI", "mu"),
        "measurement 'main', config: has the unknown key 'POI'. Known: parameters, poi.",
    ),
    "measurements empty": (put("measurements", []), "measurements is empty"),
    "measurement number": (put("measurements", 1, 5), "measurement number 1: must be an object"),
    "setting key": (
        setting(name="mu", bound=[[0, 1]]),
        "measurement 'main', parameters, entry 1: has the unknown key 'bound'. Known: auxdata,",
    ),
    "setting twice": (
        setting(name="lumi"),
        "parameter 'lumi': has two entries in the settings. Merge them.",
    ),
    "setting without use": (
        setting(name="mu", sigmas=[1.0]),
        "parameter 'mu' (normfactor): a normfactor parameter has no sigmas. Remove that setting.",
    ),
    "setting length": (
        setting(name="stat_SR", inits=[1.0]),
        "parameter 'stat_SR' (staterror): inits has 1 entries, the parameter has 3.",
    ),
    "setting nan": (
        setting(name="mu", inits=[math.nan]),
        "parameter 'mu' (normfactor): inits[0] is nan.",
    ),
    "bound of three": (
        setting(name="mu", bounds=[[0, 1, 2]]),
        "parameter 'mu' (normfactor): bounds[0] has 3 numbers. Give [lower, upper].",
    ),
    "bound flat": (setting(name="mu", bounds=[0, 10]), "bounds[0] must be an array, not the"),
    "bounds reversed": (
        setting(name="mu", bounds=[[10, 0]]),
        "the bounds of 'mu' are [10.0, 0.0]. The lower must not exceed the upper.",
    ),
    "init outside": (
        setting(name="mu", inits=[11]),
        "parameter 'mu' (normfactor): 'mu' starts at 11.0, outside its bounds [0.0, 10.0].",
    ),
    "fixed is a number": (setting(name="mu", fixed=1), "fixed must be true or false, not the"),
    "sigma zero": (
        setting(name="stat_CR", sigmas=[0.0, 1.0]),
        "parameter 'stat_CR' (staterror): sigmas must be above zero; the smallest is 0.0.",
    ),
    "factor negative": (
        setting(name="mc_CR", factors=[1.0, -1.0]),
        "parameter 'mc_CR' (shapesys): factors must be above zero; the smallest is -1.0.",
    ),
    "poisson auxdata": (
        setting(name="mc_CR", auxdata=[1.0, -1.0]),
        "parameter 'mc_CR' (shapesys): the auxdata of a Poisson constraint cannot be negative.",
    ),
    "no observations": (
        drop("observations"),
        "has no 'observations'. Add them, or use Asimov data",
    ),
    "observation missing": (
        drop("observations", 0),
        "observations: no observation for channel 'SR'. Add its data.",
    ),
    "observation extra": (
        put("observations", 0, "name", "VR"),
        "observations: no observation for channel 'SR'. Add its data.",
    ),
    "observation twice": (duplicate("observations"), "observation 'SR': there are two with this"),
    "observation bins": (
        put("observations", 0, "data", [1]),
        "observation 'SR': data has 1 bins, the channel has 3.",
    ),
    "observation negative": (
        put("observations", 0, "data", 1, -1),
        "observation 'SR': data[1] is -1.0. An observed count cannot be negative.",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_workspace_is_refused_with_what_and_where(case: str, tmp_path: Path) -> None:
    edit, expected = MALFORMED[case]
    plain = full()
    edit(plain)
    path = tmp_path / "w.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(WorkspaceError) as caught:
        parse(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and expected in message
    assert message.endswith((".", "?"))


def test_a_template_of_the_wrong_length_is_reported_with_its_place() -> None:
    plain = full()
    ttbar(1, "data", "hi_data", [1.0, 2.0])(plain)
    with pytest.raises(WorkspaceError) as caught:
        parse(plain)
    assert str(caught.value) == (
        "workspace: channel 'SR', sample 'ttbar', modifier 'jes' (histosys): hi_data has 2 bins, "
        "the channel has 3. Give every template one value per bin."
    )


@pytest.mark.parametrize("wanted", ["nain", 2, -3, 1.5, True, ["main"], {}])
def test_an_unknown_measurement_is_refused_and_the_known_ones_are_listed(wanted: Any) -> None:
    with pytest.raises(WorkspaceError, match=r"has no measurement .*It has 'main', 'no poi'\."):
        parse(full(), measurement=wanted)


def test_a_model_without_any_modifier_is_refused() -> None:
    with pytest.raises(WorkspaceError, match="no sample has a modifier"):
        parse(model_of(("A", [sample("a", [1.0])])), require_observations=False)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b'{"channels": [\n  1,, 2]}', "line 2, column 5: is not JSON"),
        (b'{"channels": [', "line 1, column 15: is not JSON.*looks truncated"),
        (b'{"channels": [tr', "looks truncated"),
        (b'{"chann', "looks truncated"),
        (b"\xff\xfe\x00", r"is not UTF-8 text \(byte 0\)"),
        (b"[1, 2]", "must be an object at the top level, not an array"),
        (b"{} extra", "line 1, column 4: is not JSON: Extra data. Correct it there"),
        (b"null", "must be an object at the top level, not null"),
        (b"[" * 100_000, "nested too deeply|truncated"),
        (b'{"channels": ' + b"9" * 5000 + b"}", "number that cannot be read"),
    ],
)
def test_a_file_that_is_not_a_workspace_is_refused_by_name(
    content: bytes, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "w.json"
    path.write_bytes(content)
    with pytest.raises(WorkspaceError, match=expected) as caught:
        parse(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_path_that_is_not_a_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"absent\.json: no such file"):
        parse(tmp_path / "absent.json")
    with pytest.raises(WorkspaceError, match="is a directory"):
        parse(tmp_path)
    with pytest.raises(WorkspaceError, match="is not a path"):
        parse("a\0b")
    with pytest.raises(WorkspaceError, match="cannot be read"):
        parse("x" * 5000)


# --- Fuzzing ---


def small() -> Plain:
    """All seven modifiers in as few values as possible."""
    mods = [
        modifier("normfactor", "mu"),
        normsys("jes"),
        histosys("jes", [1.0, 2.0], [3.0, 4.0]),
        modifier("lumi", "lumi"),
        modifier("shapefactor", "free"),
        modifier("shapesys", "mc", [1.0, 2.0]),
        modifier("staterror", "stat", [1.0, 2.0]),
    ]
    config = {"poi": "mu", "parameters": [lumi(), {"name": "mu", "fixed": False}]}
    return {
        "channels": [{"name": "SR", "samples": [sample("b", [5.0, 6.0], *mods)]}],
        "observations": [{"name": "SR", "data": [5, 6]}],
        "measurements": [{"name": "main", "config": config}],
        "version": "1.0.0",
    }


def paths(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = list(plain) if isinstance(plain, dict) else range(len(plain))
    for key in keys:
        yield (*path, key)
        if isinstance(plain[key], dict | list):
            yield from paths(plain[key], (*path, key))


PATHS = list(paths(small()))
REPLACEMENTS = [None, True, 0, -1.5, 10**400, math.nan, math.inf, "", "lumi", "\ud800", [], [[]]]
REPLACEMENTS += [[1.0], [1.0, 2.0, 3.0], ["1", "2"], {}, {"name": "SR"}, [{}], {"lo": 1, "hi": []}]


def assert_parsed_or_refused_by_name(plain: Any, path: Path) -> bool:
    path.write_text(json.dumps(plain))
    try:
        assert isinstance(parse(path), Specification)
    except WorkspaceError as error:
        assert str(error).startswith(f"{path}: ")
        return False
    return True


def test_without_any_one_key_a_workspace_is_read_or_refused_by_name(tmp_path: Path) -> None:
    accepted = []
    for path in PATHS:
        plain = small()
        drop(*path)(plain)
        if assert_parsed_or_refused_by_name(plain, tmp_path / "w.json"):
            accepted.append(path)
    # Most of what can be left out are whole modifiers; of keys only these.
    assert {path[-1] for path in accepted if isinstance(path[-1], str)} == {
        "version",
        "poi",
        "fixed",
        "sigmas",
        "data",
    }


@pytest.mark.parametrize("value", REPLACEMENTS, ids=lambda value: repr(value)[:20])
def test_with_any_one_value_replaced_a_workspace_is_read_or_refused_by_name(
    value: Any, tmp_path: Path
) -> None:
    for path in PATHS:
        plain = small()
        put(*path, value)(plain)
        assert_parsed_or_refused_by_name(plain, tmp_path / "w.json")


def test_with_any_list_longer_or_shorter_a_workspace_is_read_or_refused_by_name(
    tmp_path: Path,
) -> None:
    for path in PATHS:
        if isinstance(at(small(), *path), list):
            for change in (
                lambda entries: entries.append(entries[0]),
                lambda entries: entries.pop(),
            ):
                plain = small()
                change(at(plain, *path))
                assert_parsed_or_refused_by_name(plain, tmp_path / "w.json")


def test_a_truncated_file_is_always_reported_as_truncated(tmp_path: Path) -> None:
    text = json.dumps(small()).replace("SR", r"S\u00fcd \"R").replace("0.02", "-2.0e-1")
    path = tmp_path / "w.json"
    for end in range(1, len(text)):
        path.write_text(text[:end])
        with pytest.raises(WorkspaceError, match="looks truncated") as caught:
            parse(path)
        assert str(caught.value).startswith(f"{path}: line 1, column ")


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_random_changes_at_several_places_raise_only_workspace_errors(
    data: st.DataObject,
) -> None:
    leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=6,
    )
    plain = small()
    for path in data.draw(st.lists(st.sampled_from(PATHS), max_size=3)):
        try:
            put(*path, data.draw(values))(plain)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    try:
        parse(plain)
    except WorkspaceError as error:
        assert str(error).startswith("workspace: ")


def test_a_changed_workspace_that_is_accepted_has_the_same_parameters_in_pyhf() -> None:
    lenient = {"version", "poi", "data"}  # may be absent, pyhf wants them written
    for path in PATHS:
        for value in ([1.0], [2.0, 3.0], 2.5, "jes", {}):
            plain = small()
            put(*path, value)(plain)
            try:
                spec = parse(plain)
            except WorkspaceError:
                continue
            assert_as_pyhf(spec, pyhf.Workspace(plain).model())
        plain = small()
        drop(*path)(plain)
        try:
            spec = parse(plain)
        except WorkspaceError:
            continue
        if path[-1] not in lenient:
            assert_as_pyhf(spec, pyhf.Workspace(plain).model())
