"""Temporary checkouts of revisions of a git repository.

The user's working tree, index and branches are not touched, and no hooks run. What a killed gate
leaves behind is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firstlight.errors import FirstlightError

#: Names for the working tree with its uncommitted changes.
UNCOMMITTED = (".", "worktree")
_PREFIX = "firstlight-gate-"
#: Set by git for hooks; they would direct every command to another repository or index.
_INHERITED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


class RevisionError(FirstlightError):
    """A revision cannot be found or checked out."""


@dataclass(frozen=True)
class Checkout:
    """A checked-out revision."""

    root: Path
    revision: str  # as the user wrote it
    commit: str
    changed: str | None  # a hash of the uncommitted state; None: no uncommitted changes


def git(folder: Path, *arguments: str) -> str:
    """The output of a git command; an error contains git's message."""
    variables = {k: v for k, v in os.environ.items() if k not in _INHERITED}
    # Without hooks: our checkouts must not trigger builds or notifications.
    command = ["git", "-C", str(folder), "-c", f"core.hooksPath={os.devnull}", *arguments]
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        raise RevisionError("git is not installed, and revisions need it.") from None
    if done.returncode != 0:
        raise RevisionError(f"git {arguments[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def repository_root(folder: Path) -> Path:
    """The top of the working tree that contains `folder`."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel").rstrip("\n")).resolve()
    except RevisionError as error:
        raise RevisionError(
            f"{folder} is not in a git repository ({error}). Run the gate inside one, or compare "
            "two environments with --base-env and --head-env."
        ) from None


def commit_of(root: Path, revision: str) -> str:
    """The full id of the commit that `revision` names."""
    name = "HEAD" if revision in UNCOMMITTED else revision
    if not name or name.startswith("-"):
        raise RevisionError(f"{revision!r} is not a revision.")
    try:
        return git(root, "rev-parse", "--verify", "--quiet", name + "^{commit}").strip()
    except RevisionError:
        hint = "Give a branch, a tag or a commit; `git fetch` may be needed first."
        if git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
            hint = (
                "This clone is shallow: fetch more of its history first (fetch-depth: 0 in "
                "actions/checkout, or git fetch --unshallow)."
            )
        raise RevisionError(f"{revision!r} names no commit of {root}. {hint}") from None


@contextlib.contextmanager
def checkouts(root: Path, revisions: dict[str, str]) -> Iterator[dict[str, Checkout]]:
    """{name: checkout} for {name: revision}, in a temporary folder that is removed at the end."""
    remove_abandoned(root)
    commits = {name: commit_of(root, revision) for name, revision in revisions.items()}
    parent = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
    with open(parent / "owner", "w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)  # released when this process ends, even if killed
        try:
            found = {}
            for name, revision in revisions.items():
                changed = _check_out(root, parent / name, commits[name], revision)
                found[name] = Checkout(parent / name, revision, commits[name], changed)
            yield found
        finally:
            for name in revisions:
                _remove(root, parent / name)
            shutil.rmtree(parent, ignore_errors=True)


def _check_out(root: Path, folder: Path, commit: str, revision: str) -> str | None:
    if revision not in UNCOMMITTED:
        git(root, "worktree", "add", "--detach", str(folder), commit)
        return None
    git(root, "worktree", "add", "--detach", "--no-checkout", str(folder), commit)
    return _copy_uncommitted(root, folder)


def _copy_uncommitted(root: Path, folder: Path) -> str:
    """Copy tracked and untracked files; return a hash of names and contents."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    digest = hashlib.sha256()
    for name in sorted({n for n in listed.split("\0") if n}):
        source, target = root / name, folder / name
        if not source.is_symlink() and not source.is_file():  # deleted, or a submodule
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
        content = os.readlink(target).encode() if target.is_symlink() else target.read_bytes()
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    return digest.hexdigest()


def _remove(root: Path, folder: Path) -> None:
    # The folder first: git refuses to remove a worktree with submodules, unless its folder is gone.
    shutil.rmtree(folder, ignore_errors=True)
    # Not `git worktree prune`: it would also forget worktrees of the user on unmounted disks.
    with contextlib.suppress(RevisionError):
        git(root, "worktree", "remove", "--force", "--force", str(folder))


def remove_abandoned(root: Path) -> None:
    """Remove worktrees of killed gates, recognised by the released lock of their folder."""
    for line in git(root, "worktree", "list", "--porcelain").splitlines():
        folder = Path(line.removeprefix("worktree "))
        ours = line.startswith("worktree ") and folder.parent.name.startswith(_PREFIX)
        if ours and not _is_held(folder.parent / "owner"):
            _remove(root, folder)
            with contextlib.suppress(OSError):
                (folder.parent / "owner").unlink(missing_ok=True)
                folder.parent.rmdir()  # once its last worktree is gone


def _is_held(path: Path) -> bool:
    try:
        with open(path) as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return False
