"""How is the maths of a rule done in one pass over memory, instead of one pass an operation?

numpy makes each operation a pass of its own, and those passes are what large updates wait for. A Program (ps/tracing.py) is
one loop here, in the processor's own code: each element of value, gradient and slots is read once, and each result written
once. Additions, products, quotients and roots are rounded as IEEE 754 says by numpy and by this, one by one and in the same
order, so results are the same bits, and whether a ps can do this is nobody's concern. It needs LLVM (`pip install
'paramserver[fast]'`); without it, and for maths that has no Program, nothing is fused and numpy does it all.

It must not know rules, partitions or threads. Next: ps/apply.py, which asks for it where arrays are large.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from protos.codec import Array
from protos.errors import RuleFailed
from ps.answers import guarded
from ps.tracing import Operand, Program, trace

TYPES = {"float32": "float", "float64": "double"}
INTRINSICS = {"sqrt": "sqrt", "absolute": "fabs"}
# Of every Python object. Arrays are handed over as objects: to ask numpy for the address of one takes longer than the rest.
HEAD_BYTES = object.__basicsize__
BINARY = {"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv"}


class Fused:
    """A Program as machine code. While it runs, other threads of Python do."""

    def __init__(self, program: Program, llvm: Any) -> None:
        self._program = program
        self._engine = _compiled(_source(program), llvm)  # as long as it lives, its code does
        signature = [ctypes.c_void_p] * (program.inputs + 1 + len(program.results)) + [ctypes.c_int64]
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, *signature)(self._engine.get_function_address("arrays"))

    def __call__(self, constants: Array, inputs: Sequence[Array]) -> list[Array] | None:
        """New arrays, in the shape of the inputs; None if there is a NaN in one, or if the inputs are not what it is for."""
        first = inputs[0]
        if not first.size or any(
            each.shape != first.shape or each.dtype != self._program.dtype or not each.flags.c_contiguous
            for each in inputs
        ):
            return None
        results = [np.empty(first.shape, first.dtype) for _ in self._program.results]
        arrays = map(id, (*inputs, constants, *results))
        return results if self._call(*arrays, first.size) == 0 else None


def one_pass(
    maths: Callable[[Sequence[Any]], object], inputs: int, results: int, dtype: np.dtype[Any]
) -> Callable[[Sequence[Array]], list[Array] | None] | None:
    """`maths` on arrays, as one loop over them; None where that cannot be, and numpy has to do it.

    The loop gives None as well where numpy should look at the arrays: it can say what is wrong with them.
    """
    if dtype.name not in TYPES or _llvm() is None:
        return None
    try:
        program, constants = guarded(
            lambda: trace(maths, inputs, results, dtype), field="maths", expected="operations that can be traced"
        )
    except RuleFailed:  # if it is wrong, and not just not traced, numpy will find the same and tell its author
        return None
    return functools.partial(fused(program), constants)


@functools.lru_cache(maxsize=128)
def fused(program: Program) -> Fused:
    """The program as machine code, made once: that takes a tenth of a second."""
    return Fused(program, _llvm())


@functools.lru_cache(maxsize=1)
def _llvm() -> Any:
    """The module that talks to LLVM, None if there is none."""
    try:
        llvm = importlib.import_module("llvmlite.binding")
    except ImportError:
        return None
    if not _data_follows_head():
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _data_follows_head() -> bool:
    """Whether an array's object holds the address of its data right after its head, as numpy's C interface says."""
    array = np.zeros(1)
    return ctypes.c_void_p.from_address(id(array) + HEAD_BYTES).value == array.ctypes.data


def available() -> bool:
    """Whether LLVM is installed; it is not loaded for that."""
    return importlib.util.find_spec("llvmlite") is not None


def _compiled(source: str, llvm: Any) -> Any:
    """An engine that holds the code for this processor, its widest registers used."""
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    module = llvm.parse_assembly(source)
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = True
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _source(program: Program) -> str:
    """The loop over the elements, as LLVM reads it. No operation may be contracted or reordered: it has no such flags.

    update(inputs…, constants, results…, count) is 0 if no result is NaN.
    """
    real, align = TYPES[program.dtype], np.dtype(program.dtype).itemsize
    inputs, constants, results = range(program.inputs), range(program.constants), range(len(program.results))
    names = {"input": "x", "constant": "c", "step": "s"}

    def value(operand: Operand) -> str:
        return f"%{names[operand[0]]}{operand[1]}"

    def load(name: str, pointer: str, index: str) -> list[str]:
        at = f"getelementptr inbounds {real}, ptr {pointer}, i64 {index}"
        return [f"%at_{name} = {at}", f"%{name} = load {real}, ptr %at_{name}, align {align}"]

    def step(number: int, operation: str, taken: Sequence[Operand]) -> str:
        first, last = value(taken[0]), value(taken[-1])
        if operation in BINARY:
            return f"%s{number} = {BINARY[operation]} {real} {first}, {last}"
        if operation == "square":
            return f"%s{number} = fmul {real} {first}, {first}"
        if operation == "negative":
            return f"%s{number} = fneg {real} {first}"
        return f"%s{number} = call {real} @llvm.{INTRINSICS[operation]}.f{8 * align}({real} {first})"

    def store(number: int, result: Operand) -> list[str]:
        before = "%bad" if number == 0 else f"%bad{number - 1}"
        return [
            f"%to{number} = getelementptr inbounds {real}, ptr %result{number}, i64 %i",
            f"store {real} {value(result)}, ptr %to{number}, align {align}",
            f"%nan{number} = fcmp uno {real} {value(result)}, {value(result)}",
            f"%one{number} = zext i1 %nan{number} to i32",
            f"%bad{number} = or i32 {before}, %one{number}",
        ]

    parameters = [f"ptr noalias readonly %input{number}" for number in inputs] + ["ptr noalias readonly %constants"]
    parameters += [f"ptr noalias %result{number}" for number in results] + ["i64 %count"]
    lines = [
        *(f"declare {real} @llvm.{name}.f{8 * align}({real})" for name in INTRINSICS.values()),
        f"define i32 @update({', '.join(parameters)}) {{",
        "entry:",
        *(line for number in constants for line in load(f"c{number}", "%constants", str(number))),
        "br label %loop",
        "loop:",
        "%i = phi i64 [0, %entry], [%next, %loop]",
        f"%bad = phi i32 [0, %entry], [%bad{len(results) - 1}, %loop]",
        *(line for number in inputs for line in load(f"x{number}", f"%input{number}", "%i")),
        *(step(number, *each) for number, each in enumerate(program.steps)),
        *(line for number, result in enumerate(program.results) for line in store(number, result)),
        "%next = add nuw nsw i64 %i, 1",
        "%done = icmp eq i64 %next, %count",
        "br i1 %done, label %end, label %loop",
        "end:",
        f"ret i32 %bad{len(results) - 1}",
        "}",
        *_entry(len(parameters) - 1),
    ]
    return "\n".join(lines)


def _entry(arrays: int) -> list[str]:
    """arrays(array objects…, count) is `update` on their data."""
    objects, pointers = ([f"ptr %{name}{number}" for number in range(arrays)] for name in ("array", "data"))
    return [
        f"define i32 @arrays({', '.join(objects)}, i64 %count) {{",
        *(
            line
            for number in range(arrays)
            for line in (
                f"%at{number} = getelementptr inbounds i8, ptr %array{number}, i64 {HEAD_BYTES}",
                f"%data{number} = load ptr, ptr %at{number}, align 8",
            )
        ),
        f"%bad = call i32 @update({', '.join(pointers)}, i64 %count)",
        "ret i32 %bad",
        "}",
    ]
