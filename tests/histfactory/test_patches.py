from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonpatch
import pyhf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.histfactory import json_patch
from firstlight.histfactory.patches import digest
from firstlight.histfactory.spec import parse
from firstlight.histfactory.workspace_file import ContentError, WorkspaceError

# pyhf 0.7.6 validates with a class that jsonschema has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")

Plain = dict[str, Any]


def workspace() -> Plain:
    factor = {"name": "k", "type": "normfactor", "data": None}
    return {
        "channels": [
            {"name": "SR", "samples": [{"name": "b", "data": [5.0, 6.0], "modifiers": [factor]}]}
        ],
        "observations": [{"name": "SR", "data": [5, 6]}],
        "measurements": [{"name": "ünfitted", "config": {"poi": "", "parameters": []}}],
        "version": "1.0.0",
    }


def signal(first: float) -> Plain:
    factor = {"name": "mu", "type": "normfactor", "data": None}
    return {"name": f"s{first}", "data": [first, 1.0], "modifiers": [factor]}


def operations(first: float = 2.0) -> list[Plain]:
    return [
        {"op": "add", "path": "/channels/0/samples/0", "value": signal(first)},
        {"op": "replace", "path": "/measurements/0/config/poi", "value": "mu"},
    ]


def patchset() -> Plain:
    return {
        "metadata": {
            "references": {"hepdata": "ins1234567"},
            "description": "signals",
            "digests": {alg: pyhf.utils.digest(workspace(), alg) for alg in ("md5", "sha256")},
            "labels": ["m1", "m2"],
        },
        "patches": [
            {"metadata": {"name": "s_2_100", "values": [2, 100]}, "patch": operations(2.0)},
            {"metadata": {"name": "s_3_100", "values": [3, 100]}, "patch": operations(3.0)},
        ],
        "version": "1.0.0",
    }


def write(path: Path, plain: Any) -> Path:
    path.write_text(json.dumps(plain))
    return path


def sample_names(*patches: Any) -> list[str]:
    spec = parse(workspace(), patches=patches)
    return [one.name for one in spec.channels[0].samples]


def test_a_patch_is_a_list_or_a_file_and_the_workspace_is_left_as_it_was(tmp_path: Path) -> None:
    plain = workspace()
    file = write(tmp_path / "patch.json", operations())
    for patch in (operations(), file, str(file)):
        spec = parse(plain, patches=[patch])
        assert spec.poi == "mu" and [s.name for s in spec.channels[0].samples] == ["b", "s2.0"]
    assert plain == workspace()


def test_patches_are_applied_in_order() -> None:
    rename = [{"op": "replace", "path": "/channels/0/samples/0/name", "value": "renamed"}]
    assert sample_names(operations(), rename) == ["b", "renamed"]
    assert sample_names(rename, operations()) == ["renamed", "s2.0"]


@pytest.mark.parametrize("key", ["s_3_100", (3, 100), [3.0, 100.0]])
def test_a_patch_of_a_patchset_is_found_by_name_and_by_values_as_in_pyhf(
    key: Any, tmp_path: Path
) -> None:
    file = write(tmp_path / "patchset.json", patchset())
    theirs = pyhf.PatchSet(patchset()).apply(workspace(), key)
    expected = sorted(one["name"] for one in theirs["channels"][0]["samples"])
    for one in (file, str(file), patchset()):
        assert sample_names((one, key)) == expected == ["b", "s3.0"]


def test_two_patches_of_one_patchset_can_be_combined() -> None:
    assert sample_names((patchset(), "s_2_100"), (patchset(), "s_3_100")) == ["b", "s2.0", "s3.0"]


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_the_digest_is_that_of_pyhf(algorithm: str) -> None:
    assert digest(workspace(), algorithm) == pyhf.utils.digest(workspace(), algorithm)


def test_a_patchset_for_another_workspace_is_refused_with_both_digests(tmp_path: Path) -> None:
    other = workspace()
    other["observations"][0]["data"][0] = 7
    source = write(tmp_path / "w.json", other)
    file = write(tmp_path / "patchset.json", patchset())
    with pytest.raises(WorkspaceError) as caught:
        parse(source, patches=[(file, "s_2_100")])
    message = str(caught.value)
    assert message.startswith(f"{file}: was made for another workspace: its md5 is ")
    for one in (pyhf.utils.digest(other, "md5"), pyhf.utils.digest(workspace(), "md5")):
        assert one in message
    assert str(source) in message


def changed(*path: Any) -> Plain:
    """The patchset with the value at a path replaced by the last entry."""
    plain: Any = patchset()
    result = plain
    *keys, last, value = path
    for key in keys:
        plain = plain[key]
    plain[last] = value
    return result


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ((patchset(), "s_9"), "patchset 0: has no patch 's_9'. It has 's_2_100', 's_3_100'."),
        ((patchset(), (9, 9)), "patchset 0: has no patch (9, 9). It has 's_2_100', 's_3_100'."),
        ((patchset(), 3), "patchset 0: the values of a patch must be an array, not the number 3."),
        ((patchset(),), "patch 0: must be a pair (patchset, name)."),
        ((5, "x"), "patch 0: must be a pair (patchset, name)."),
        (patchset(), "patch 0: is an object, not an array of operations."),
        (patchset(), "with the pair (patchset, name). It has 's_2_100', 's_3_100'."),
        ({}, "patch 0: is an object, not an array of operations."),
        ({"patches": 3}, "patch 0: patches must be an array"),
        ("absent.json", "absent.json: no such file."),
        (("absent.json", "x"), "absent.json: no such file."),
        (5, "patch 0: a patch must be an array of operations, not the number 5."),
        ((changed("patches", 3), "x"), "patchset 0: patches must be an array"),
        ((changed("patches", 0, 3), "x"), "patchset 0: patch 0: has no metadata with a name."),
        (
            (changed("patches", 0, "metadata", {"name": "x"}), "x"),
            "patch 'x': has no metadata with",
        ),
        ((changed("patches", 1, patchset()["patches"][0]), "s_2_100"), "2 patches are called"),
        (
            (changed("patches", 0, "patch", 3), "s_2_100"),
            "patch 's_2_100': a patch must be an array",
        ),
        ((changed("metadata", "digests", {}), "s_2_100"), "metadata has no digests"),
        ((changed("metadata", 3), "s_2_100"), "metadata has no digests"),
        (
            (changed("metadata", "digests", {"crc": "0"}), "s_2_100"),
            "has a digest 'crc'. Known: 'md5'",
        ),
        ((changed("metadata", "digests", "md5", 3), "s_2_100"), "its md5 is the number 3"),
    ],
)
def test_a_patch_that_cannot_be_found_is_refused(patch: Any, expected: str) -> None:
    with pytest.raises(WorkspaceError) as caught:
        parse(workspace(), patches=[patch])
    assert expected in str(caught.value)


def test_an_operation_that_fails_is_named_with_its_file(tmp_path: Path) -> None:
    broken = [*operations(), {"op": "remove", "path": "/channels/0/samples/7"}]
    file = write(tmp_path / "patch.json", broken)
    with pytest.raises(WorkspaceError) as caught:
        parse(workspace(), patches=[file])
    assert str(caught.value) == (
        f"{file}: operation 2, remove '/channels/0/samples/7': the index 7 is out of range: the "
        "array has 2 entries."
    )


def test_a_workspace_that_a_patch_has_broken_is_refused() -> None:
    with pytest.raises(WorkspaceError, match="workspace: must be an object, not null"):
        parse(workspace(), patches=[[{"op": "replace", "path": "", "value": None}]])


# The examples of RFC 6902, appendix A, and what its sections 3 and 4 and RFC 6901 forbid: document,
# operations, result; None where it is an error.
RFC_EXAMPLES: list[tuple[Any, list[Plain], Any]] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "q"}], {"baz": "q", "foo": "bar"}),
    ({"foo": ["a", "b"]}, [{"op": "add", "path": "/foo/1", "value": 0}], {"foo": ["a", 0, "b"]}),
    ({"baz": "q", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["a", "q", "b"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["a", "b"]}),
    ({"baz": "q"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [
            {"op": "test", "path": "/baz", "value": "qux"},
            {"op": "test", "path": "/foo/1", "value": 2.0},
        ],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    ({"baz": "qux"}, [{"op": "test", "path": "/baz", "value": "bar"}], None),
    ({"a": 1}, [{"op": "add", "path": "/b", "value": {"c": 2}}], {"a": 1, "b": {"c": 2}}),
    ({"a": 1}, [{"op": "add", "path": "/b", "value": 2, "xyz": 3}], {"a": 1, "b": 2}),
    ({"foo": "bar"}, [{"op": "add", "path": "/baz/bat", "value": "qux"}], None),
    (
        {"/": 9, "~1": 10},
        [{"op": "test", "path": "/~01", "value": 10}, {"op": "remove", "path": "/~1"}],
        {"~1": 10},
    ),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": "10"}], None),
    ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["x"]}], {"foo": ["bar", ["x"]]}),
    ({"": 0}, [{"op": "copy", "from": "/", "path": "/a"}], {"": 0, "a": 0}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": 3}], 3),
    ({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}),
    ({"a": {"b": 1}}, [{"op": "move", "from": "/a", "path": "/a/b"}], None),
    ({"a": 1}, [{"op": "replace", "path": "/b", "value": 2}], None),
    ({"a": 1}, [{"op": "remove", "path": "/b"}], None),
    ({"a": 1}, [{"op": "remove", "path": ""}], None),
    ({"a": 1}, [{"op": "test", "path": "/a", "value": True}], None),
    ({"a": [1, {"b": None}]}, [{"op": "test", "path": "/a", "value": [1, {"b": False}]}], None),
    ({"a": [1]}, [{"op": "remove", "path": "/a/-"}], None),
    ({"a": [1]}, [{"op": "add", "path": "/a/2", "value": 0}], None),
    ({"a": [1, 2]}, [{"op": "remove", "path": "/a/01"}], None),
    ({"a": [1, 2]}, [{"op": "remove", "path": "/a/-1"}], None),
    ({"a": 1}, [{"op": "add", "path": "b", "value": 0}], None),
    ({"a": 1}, [{"op": "add", "path": "/~2", "value": 0}], None),
    ({"a": 1}, [{"op": "add", "path": 3, "value": 0}], None),
    ({"a": 1}, [{"op": "add", "path": "/b"}], None),
    ({"a": 1}, [{"op": "copy", "path": "/b"}], None),
    ({"a": 1}, [{"op": "spam", "path": "/b"}], None),
    ({"a": 1}, [{"op": [], "path": "/b"}], None),
    ({"a": 1}, [{"path": "/b"}], None),
    (3, [{"op": "add", "path": "/b", "value": 0}], None),
]


@pytest.mark.parametrize(("document", "patch", "expected"), RFC_EXAMPLES)
def test_operations_do_what_the_standard_says(
    document: Any, patch: list[Plain], expected: Any
) -> None:
    before = copy.deepcopy(document)
    if expected is None:
        with pytest.raises(ContentError) as caught:
            json_patch.apply(document, patch)
        assert caught.value.places[0].startswith("operation ")
    else:
        assert json_patch.apply(document, patch) == expected
    assert document == before


POINTERS = st.sampled_from(["", "/a", "/a/0", "/a/-", "/a/1/b", "/b", "/b/c", "/b/a~1b", "/a/9"])
VALUES = st.sampled_from([0, "x", [1], {"b": 2}])
OPERATIONS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": POINTERS,
        "from": POINTERS,
        "value": VALUES,
    }
)


@given(st.lists(OPERATIONS, max_size=4))
@settings(deadline=None, max_examples=300)
def test_operations_do_what_the_jsonpatch_package_does(patch: list[Plain]) -> None:
    document = {"a": [0, {"b": 1}, [2]], "b": {"c": [], "a/b": 0}}
    try:
        expected = jsonpatch.apply_patch(document, patch)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
        expected = None
    except (KeyError, TypeError, IndexError, AttributeError):
        return  # where that package crashes it is no oracle
    try:
        found = json_patch.apply(document, patch)
    except ContentError:
        found = None
    if expected is not None and found is not None:
        assert found == expected
    # It lets the whole document be removed and a value be moved into itself; the standard does not.
    elif expected is not None:
        assert any(one["op"] in ("remove", "move") for one in patch)
