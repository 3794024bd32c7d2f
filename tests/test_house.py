"""The tree says the architecture: imports point downward, private modules stay private."""

import ast
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import vllmfront

ROOT = Path(vllmfront.__file__).parent

LAYERS = (
    "cli",
    "lifecycles",
    "api",
    "control",
    "chat",
    "text",
    "models",
    "engine",
    "supervisor",
    "interprocess",
    "environment",
    "errors",
)
"""From top to bottom; a package imports from those below it alone."""

BESIDE = {"simulator": {"engine"}, "testing": {"engine", "simulator"}, "rl": set()}
"""Packages that stand beside the layers, and what they may import besides errors."""

EXCEPTIONS = {
    ("chat", "text"),  # neither needs the other
    ("supervisor", "engine"),  # nor does a supervisor know what it supervises
    ("engine", "supervisor"),
    ("supervisor", "interprocess"),  # processes are processes, whatever they say to each other
}
"""Pairs that the order of the layers alone would allow or leave open, and that are not allowed."""

RUNTIME_FORBIDDEN = {"vllm", "torch", "transformers", "numpy", "asyncio"}


@attrs.frozen
class Import:
    """One imported module, and where."""

    file: Path
    line: int
    module: str

    @property
    def importer(self) -> str:
        return package_of(
            ".".join(("vllmfront", *self.file.relative_to(ROOT).with_suffix("").parts))
        )

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT.parent)}:{self.line} imports {self.module}"


def package_of(module: str) -> str:
    """Name the part of the house that *module* belongs to; the root is its own."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def all_imports() -> Iterator[Import]:
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(file, node.lineno, alias.name)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}:{node.lineno} is a relative import"
                yield Import(file, node.lineno, node.module or "")
                # "from package import _module" names a module, too.
                for alias in node.names:
                    if alias.name.startswith("_") and not alias.name.startswith("__"):
                        yield Import(file, node.lineno, f"{node.module}.{alias.name}")


IMPORTS = list(all_imports())
OWN = [one for one in IMPORTS if one.module.split(".")[0] == "vllmfront"]


def allowed(importer: str, imported: str) -> bool:
    if importer == imported or imported in {"", "errors"}:
        return True
    if importer == "cli" and imported in BESIDE:
        return True
    if importer in BESIDE:
        return imported in BESIDE[importer]
    if importer not in LAYERS or imported not in LAYERS or (importer, imported) in EXCEPTIONS:
        return False
    return LAYERS.index(importer) < LAYERS.index(imported)


def test_there_are_imports_to_check() -> None:
    assert len(OWN) > 100
    assert {one.importer for one in OWN} >= set(LAYERS) - {"errors"}


def test_imports_point_downward() -> None:
    wrong = [
        str(one)
        for one in OWN
        if one.file.parent != ROOT and not allowed(one.importer, package_of(one.module))
    ]

    assert wrong == []


def test_private_modules_are_not_imported_from_outside_their_package() -> None:
    wrong = []
    for one in OWN:
        parts = one.module.split(".")
        private = next((i for i, part in enumerate(parts) if part.startswith("_")), None)
        if private is None or parts[private].startswith("__"):
            continue
        owner = ROOT.parent.joinpath(*parts[:private])
        # Its own package may, with all below it, and so may the package around it.
        if owner not in one.file.parents and one.file.parent not in owner.parents:
            wrong.append(str(one))

    assert wrong == []


def test_nothing_heavy_is_imported() -> None:
    wrong = [str(one) for one in IMPORTS if one.module.split(".")[0] in RUNTIME_FORBIDDEN]

    assert wrong == []


def test_the_reaper_needs_the_standard_library_alone() -> None:
    reaper = ROOT / "supervisor" / "_reaper.py"

    assert [str(one) for one in OWN if one.file == reaper] == []


@pytest.mark.parametrize("package", sorted({file.parent for file in ROOT.rglob("*.py")} - {ROOT}))
def test_packages_only_re_export(package: Path) -> None:
    body = ast.parse((package / "__init__.py").read_text()).body
    kinds = {
        type(node).__name__ for node in body if not isinstance(node, ast.Import | ast.ImportFrom)
    }

    assert kinds <= {"Expr", "Assign"}
