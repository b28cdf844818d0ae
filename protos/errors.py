"""Which errors can the parameter server raise, and what does each carry?

    ParameterServerError
    ├── InvalidInput                 the caller's input is wrong; nothing has changed            (also a ValueError)
    │   ├── ClusterError             TF_CONFIG or the cluster description
    │   ├── RuleError                unknown rule, unknown or bad argument, bad rule file
    │   ├── UnknownVariable
    │   ├── ShapeMismatch
    │   ├── DtypeMismatch
    │   ├── NotTrainable             a gradient for state that takes none
    │   ├── RowOutOfRange
    │   ├── NonFiniteGradient
    │   └── InvalidVersion           a push computed at a version that cannot be
    ├── Conflict                     somebody has said otherwise; nothing has changed
    │   ├── ConfigurationConflict    mode, slack, backup workers or rule
    │   ├── InitConflict             another model is already there
    │   ├── WrongRun                 a process of another job
    │   ├── WorkerIndexTaken         a second live process under one index
    │   ├── ProtocolMismatch         client and ps of different protocol versions
    │   └── AlreadyPushed            a second gradient of one worker for one version in sync mode
    ├── NotInitialized               a pull or push before any init
    ├── NotJoined                    the session is unknown here: it never joined, has left, or was replaced
    ├── ReadOnly                     an observer tried to change something
    ├── RuleFailed                   the update rule raised, or returned something of another shape
    ├── PushFailed                   some ps refused a push; `refused` says which and why
    ├── WaitTimeout                  a wait passed its deadline; says what was missing           (also a TimeoutError)
    ├── Unavailable                                                                          (also a ConnectionError)
    │   ├── PeerUnavailable          nobody answers at the address, or the connection broke
    │   └── ServerStopping           the ps is going down, and why
    ├── AddressInUse                                                                              (also an OSError)
    └── InternalError                a bug of ours, with what is known of it

Every error has `field` (what it is about), `got`, `expected` and `hint` (what to do), as text, and, once a client has it,
`ps` and `address`. The class name is what crosses the wire; `from_wire` rebuilds the class. This file knows no grpc: see
status.py for how an error maps to a grpc status.
"""

from __future__ import annotations

from collections.abc import Mapping


class ParameterServerError(Exception):
    """Base of all errors. `field`, `got`, `expected`, `hint` are text; `ps` and `address` are set by the client.

    `sequence` is set on whatever a push or push_pull raises after it was sent: push again with it, and nothing that was
    applied is applied twice.
    """

    summary = "the parameter server failed"

    def __init__(self, *, field: str = "", got: object = "", expected: object = "", hint: str = "") -> None:
        self.field, self.got, self.expected, self.hint = field, str(got), str(expected), hint
        self.ps: int | None = None
        self.address: str | None = None
        self.sequence: int | None = None
        super().__init__()

    def at(self, ps: int, address: str) -> ParameterServerError:
        """The same error, saying which ps it came from."""
        self.ps, self.address = ps, address
        return self

    def attributes(self) -> dict[str, str]:
        return {"field": self.field, "got": self.got, "expected": self.expected, "hint": self.hint}

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process pools too: rebuilt with all that they carry."""
        return _rebuild, (type(self), dict(self.__dict__))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __str__(self) -> str:
        where = f"ps {self.ps} ({self.address}): " if self.ps is not None else ""
        what = f"{self.field}: " if self.field else ""
        detail = self.got  # where nothing is expected in its place it is a reason, and stands alone
        if self.expected:
            detail = (f"got {self.got}, " if self.got else "") + f"expected {self.expected}"
        text = f"{where}{what}{self.summary}" + (f": {detail}" if detail else "")
        return text + (f". {self.hint}" if self.hint else "")


class InvalidInput(ParameterServerError, ValueError):
    summary = "invalid input"


class ClusterError(InvalidInput):
    summary = "the cluster description is wrong"


class RuleError(InvalidInput):
    summary = "the update rule is wrong"


class UnknownVariable(InvalidInput):
    summary = "unknown variable"


class ShapeMismatch(InvalidInput):
    summary = "wrong shape"


class DtypeMismatch(InvalidInput):
    summary = "wrong dtype"


class NotTrainable(InvalidInput):
    summary = "this variable takes no gradient"


class RowOutOfRange(InvalidInput):
    summary = "row out of range"


class NonFiniteGradient(InvalidInput):
    summary = "the gradient holds NaN or Inf"


class InvalidVersion(InvalidInput):
    summary = "no gradient can have been computed at this version"


class Conflict(ParameterServerError):
    summary = "conflict"


class ConfigurationConflict(Conflict):
    summary = "the job is configured otherwise"


class InitConflict(Conflict):
    summary = "another model is initialised already"


class WrongRun(Conflict):
    summary = "this process belongs to another run"


class WorkerIndexTaken(Conflict):
    summary = "a live process already has this worker index"


class ProtocolMismatch(Conflict):
    summary = "client and ps speak different versions of the protocol"


class AlreadyPushed(Conflict):
    summary = "this worker already pushed a gradient for this version"


class NotInitialized(ParameterServerError):
    summary = "the model is not initialised"


class NotJoined(ParameterServerError):
    summary = "this session is not joined"


class ReadOnly(ParameterServerError):
    summary = "an observer may only read"


class RuleFailed(ParameterServerError):
    summary = "the update rule failed"


class PushFailed(ParameterServerError):
    """A push that at least one ps refused: `refused` maps ps index to its error.

    The other ps have applied their part. Push again with `sequence=error.sequence` once the cause is gone: those answer what
    they answered first, and nothing is applied twice.
    """

    summary = "the push failed"

    def __init__(
        self,
        *,
        refused: Mapping[int, ParameterServerError] | None = None,
        sequence: int = 0,
        field: str = "",
        got: object = "",
        expected: object = "",
        hint: str = "",
    ) -> None:
        super().__init__(field=field, got=got, expected=expected, hint=hint)
        self.refused = dict(refused or {})
        self.sequence = sequence


class WaitTimeout(ParameterServerError, TimeoutError):
    summary = "waited too long"


class Unavailable(ParameterServerError, ConnectionError):
    summary = "unavailable"


class PeerUnavailable(Unavailable):
    summary = "no answer"


class ServerStopping(Unavailable):
    """`got` is why: "stopped by SIGTERM"."""

    summary = "the job is over"


class AddressInUse(ParameterServerError, OSError):
    summary = "the address cannot be bound"


class InternalError(ParameterServerError):
    summary = "internal error"


def _rebuild(cls: type[ParameterServerError], attributes: dict[str, object]) -> ParameterServerError:
    error = cls()
    error.__dict__.update(attributes)
    return error


def _tree(root: type[ParameterServerError]) -> dict[str, type[ParameterServerError]]:
    return {root.__name__: root} | {name: cls for sub in root.__subclasses__() for name, cls in _tree(sub).items()}


BY_NAME: Mapping[str, type[ParameterServerError]] = _tree(ParameterServerError)


def from_wire(name: str, attributes: Mapping[str, str]) -> ParameterServerError:
    """The error that `name` and `attributes` stand for. A name of a newer peer becomes an InternalError that keeps it."""
    known = {key: attributes.get(key, "") for key in ("field", "got", "expected", "hint")}
    cls = BY_NAME.get(name)
    if cls is None:
        known["field"] = f"{name} {known['field']}".strip()
        cls = InternalError
    return cls(**known)
