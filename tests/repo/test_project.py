"""Is what the project says of itself right? Console scripts, packages, dependencies, the two commands of the README."""

from __future__ import annotations

import ast
import re

import pytest

from tests.repo.sources import PACKAGES, ROOT, imports, python_files, tree

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def section(header: str) -> str:
    """The lines of a table of pyproject.toml. (Python 3.10 has no reader for it.)"""
    return PYPROJECT.split(f"[{header}]\n", 1)[1].partition("\n[")[0]


def scripts() -> dict[str, str]:
    return dict(re.findall(r'^([\w-]+) = "([\w.:]+)"$', section("project.scripts"), re.MULTILINE))


def test_the_programs_are_those_of_the_design() -> None:
    assert set(scripts()) == {"ps-server", "ps-worker", "ps-run", "ps-ctl"}
    assert "ps" not in scripts()  # that one shows processes


@pytest.mark.parametrize("program", ["ps-server", "ps-worker", "ps-run", "ps-ctl"])
def test_a_program_is_there_and_its_help_has_an_example(program: str) -> None:
    module, _, function = scripts()[program].partition(":")
    path = ROOT / (module.replace(".", "/") + ".py")
    found = {node.name for node in tree(path).body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assert function in found, f"{program} is {module}:{function}, which is not there"
    assert re.search(r"Examples?:", path.read_text(encoding="utf-8"))


def test_every_folder_with_code_is_packaged() -> None:
    listed = set(re.findall(r'"([\w.]+)"', re.search(r"^packages = \[(.*?)\]", PYPROJECT, re.M | re.S).group(1)))  # type: ignore[union-attr]
    assert listed == {".".join(path.parent.relative_to(ROOT).parts) for path in python_files(*PACKAGES)}
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()


def test_base_dependencies_are_what_is_imported_and_none_is_heavy() -> None:
    listed = set(re.findall(r'^    "([\w-]+)', section("project").split("dependencies = [", 1)[1], re.MULTILINE))
    assert not listed & {"tensorflow", "keras", "torch", "jax", "scikit-learn"}
    # Import names to what they are called when they are installed.
    called = {"grpc": "grpcio", "grpc_health": "grpcio-health-checking", "google": "protobuf"}
    known = {"click", "grpc", "grpc_health", "ml_dtypes", "numpy", "google", "rich"}
    used = {module.partition(".")[0] for path in python_files("protos", "ps", "client") for module in imports(path)}
    assert {called.get(module, module) for module in used & known} == listed


def test_the_readme_shows_both_commands_and_the_makefile_has_them() -> None:
    first_screen = "\n".join(README.splitlines()[:40])
    for command in ("make demo", "make test"):
        assert command in first_screen
    for target in ("install", "demo", "test", "check"):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
    assert re.search(r"^\.PHONY:.*\bdemo\b.*\btest\b", MAKEFILE, re.MULTILINE)


def test_continuous_integration_calls_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"^make check$", script, re.MULTILINE)
    assert re.search(r"^make test$", script, re.MULTILINE)


def test_the_messages_are_those_of_the_proto_file() -> None:
    # Names and numbers of every field; that the generated file is byte for byte fresh is proved by `make check`.
    from protos import parameter_server_pb2 as pb

    text = re.sub(r"//[^\n]*", "", (ROOT / "protos" / "parameter_server.proto").read_text(encoding="utf-8"))
    written = {
        name: {(field, int(number)) for field, number in re.findall(r"(\w+)\s*=\s*(\d+)\s*;", body)}
        for name, body in re.findall(r"message (\w+) \{([^}]*)\}", text)
    }
    generated = {
        name: {(field.name, field.number) for field in message.fields}
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    }
    assert generated == written
    methods = re.findall(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)", text)
    service = pb.DESCRIPTOR.services_by_name["ParameterServer"]
    assert [(m.name, m.input_type.name, m.output_type.name) for m in service.methods] == [
        (name, asked, answered) for name, _, asked, _, answered in methods
    ]


def test_every_field_of_a_message_that_is_not_plain_has_a_sentence() -> None:
    # Not each field needs one, but each message does, above or inside of it.
    text = (ROOT / "protos" / "parameter_server.proto").read_text(encoding="utf-8")
    assert text.startswith("//")
    for comment, name in re.findall(r"((?:^//[^\n]*\n)*)^service (\w+)", text, re.MULTILINE):
        assert name == "ParameterServer", comment
    for before in re.findall(r"([^\n]*)\n  rpc \w+", text):
        assert before.strip().startswith("//"), f"a method without a sentence, after {before!r}"
