"""Weights and their manifest, on real files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.backends.worker import manifest as manifests
from sluice.backends.worker.manifest import (
    CheckCancelled,
    FileEntry,
    Manifest,
    VerifiedFiles,
    WeightsRefused,
    check_manifest,
    manifest_of,
    verify,
)

SUM = "0" * 64


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    directory = tmp_path / "weights"
    (directory / "shards").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "shards" / "one.safetensors").write_bytes(b"1" * 5_000_000)
    (directory / "shards" / "two.safetensors").write_bytes(b"")
    return directory


def refused(weights: Path, manifest: Manifest, known: VerifiedFiles | None = None) -> list[str]:
    with pytest.raises(WeightsRefused) as caught:
        verify(weights, manifest, known or VerifiedFiles(None))
    return caught.value.problems


def test_a_manifest_names_every_file_with_its_sum_and_size(weights: Path) -> None:
    manifest = manifest_of(weights)
    assert list(manifest) == ["config.json", "shards/one.safetensors", "shards/two.safetensors"]
    assert manifest["config.json"] == FileEntry(hashlib.sha256(b"{}").hexdigest(), 2)
    verify(weights, manifest, VerifiedFiles(None))


def change(weights: Path) -> str:
    file = weights / "shards" / "one.safetensors"
    file.write_bytes(b"1" * 2_500_000 + b"2" + b"1" * 2_499_999)
    return "`shards/one.safetensors` has another SHA-256 than the manifest"


def shorten(weights: Path) -> str:
    (weights / "shards" / "one.safetensors").write_bytes(b"1")
    return "`shards/one.safetensors` has 1 bytes instead of 5000000"


def remove(weights: Path) -> str:
    (weights / "config.json").unlink()
    return "`config.json` is missing"


def add(weights: Path) -> str:
    (weights / "modeling_evil.py").write_text("import os")
    return "`modeling_evil.py` is not in the manifest"


def hide_behind_a_link(weights: Path) -> str:
    elsewhere = weights.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "modeling_evil.py").write_text("import os")
    (weights / "code").symlink_to(elsewhere)
    return "`code` is not in the manifest"


def replace_by_a_pipe(weights: Path) -> str:
    (weights / "config.json").unlink()
    os.mkfifo(weights / "config.json")
    return "`config.json` is not a regular file"


def replace_by_a_dead_link(weights: Path) -> str:
    (weights / "config.json").unlink()
    (weights / "config.json").symlink_to("nowhere")
    return "`config.json` is not a regular file"


@pytest.mark.parametrize(
    "spoil",
    [
        change,
        shorten,
        remove,
        add,
        hide_behind_a_link,
        replace_by_a_pipe,
        replace_by_a_dead_link,
    ],
)
def test_every_difference_is_refused(weights: Path, spoil: Callable[[Path], str]) -> None:
    manifest = manifest_of(weights)
    said = spoil(weights)
    assert refused(weights, manifest) == [said]


def test_all_differences_are_listed(weights: Path) -> None:
    manifest = manifest_of(weights)
    said = {remove(weights), add(weights)}
    assert set(refused(weights, manifest)) == said


def test_a_link_to_a_file_is_the_file(weights: Path) -> None:
    manifest = manifest_of(weights)
    blob = weights.parent / "blob"
    (weights / "config.json").rename(blob)
    (weights / "config.json").symlink_to(blob)
    verify(weights, manifest, VerifiedFiles(None))


def test_weights_that_are_not_there_are_refused(tmp_path: Path) -> None:
    [problem] = refused(tmp_path / "nowhere", {"a": FileEntry(SUM, 1)})
    assert "can't be read: No such file or directory" in problem


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose checksums are computed."""
    seen: list[str] = []
    compute = manifests._sha256

    def noting(path: Path, cancelled: Callable[[], bool]) -> str:
        seen.append(path.name)
        return compute(path, cancelled)

    monkeypatch.setattr(manifests, "_sha256", noting)
    return seen


def test_what_was_verified_and_has_not_changed_is_not_read_again(
    weights: Path, tmp_path: Path, read: list[str]
) -> None:
    manifest, cache = manifest_of(weights), tmp_path / "cache" / "verified.json"
    verify(weights, manifest, VerifiedFiles(cache))
    read.clear()
    verify(weights, manifest, VerifiedFiles(cache))
    assert read == []


def test_a_file_of_the_same_size_and_time_is_read_again(
    weights: Path, tmp_path: Path, read: list[str]
) -> None:
    manifest, cache = manifest_of(weights), tmp_path / "verified.json"
    verify(weights, manifest, VerifiedFiles(cache))
    file = weights / "shards" / "one.safetensors"
    before = file.stat()
    said = change(weights)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    read.clear()
    assert refused(weights, manifest, VerifiedFiles(cache)) == [said]
    assert read == ["one.safetensors"]


@pytest.mark.parametrize("content", [b"", b"not json", b'{"a": 1}', b"\xff"])
def test_a_broken_memory_is_an_empty_one(
    weights: Path, tmp_path: Path, content: bytes, read: list[str]
) -> None:
    cache = tmp_path / "verified.json"
    cache.write_bytes(content)
    manifest = manifest_of(weights)
    read.clear()
    verify(weights, manifest, VerifiedFiles(cache))
    assert len(read) == 3


def test_a_memory_that_cannot_be_written_is_not_kept(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    verify(weights, manifest_of(weights), VerifiedFiles(tmp_path / "file" / "verified.json"))


def test_a_check_can_be_cancelled(weights: Path) -> None:
    with pytest.raises(CheckCancelled):
        verify(weights, manifest_of(weights), VerifiedFiles(None), lambda: True)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../a", "a/../../b", "./a", "a//b", "a/", "", ".", "a\\b", "a\0b"]
)
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="no path below"):
        check_manifest({path: FileEntry(SUM, 1)})


def test_an_empty_directory_has_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names no file"):
        manifest_of(tmp_path)
