"""The one exception tree. Every error names the field, file or flag at fault and how to mend it.

    GroundrecError
    ├── StartupError              exit code 2, one line, the port is never opened
    │   ├── CheckpointError       missing, truncated, tampered or foreign checkpoint
    │   ├── SettingsError         a setting that cannot be served
    │   └── VersionError          a vLLM (or Python) that this code was not written for
    ├── ClientError               what `service.client` raises
    │   ├── UnreachableError      no answer within the deadline
    │   └── ProblemError          the service answered with a problem document
    │       ├── RefusedError      4xx: the request is wrong
    │       ├── NotAllowedError   401, 403: the key is missing, unknown or lacks a scope
    │       ├── ThrottledError    429: the key's quota is used up
    │       └── UnavailableError  5xx: the service cannot answer now
    └── RequestError              becomes one problem+json document
        ├── UnauthorizedError     401  unauthorized
        ├── ForbiddenError        403  forbidden
        ├── UnknownItemError      404  unknown-item
        ├── UnknownModelError     404  unknown-model
        ├── ConflictError         409  conflict
        ├── MediaTypeError        415  unsupported-media-type
        ├── InvalidRequestError   422  invalid-request
        ├── QuotaError            429  quota-exceeded
        ├── UnknownVersionError   503  catalog-version-gone
        ├── OverloadedError       503  overloaded
        ├── DeadlineError         503  deadline-exceeded
        ├── EngineError           503  engine-unavailable
        └── StorageError          503  storage-unavailable
            └── StorageFullError  503  storage-full

It sits below every layer and imports nothing.
"""


class GroundrecError(Exception):
    """Root of everything this project raises on purpose."""


class StartupError(GroundrecError):
    """The program cannot start; ``str(error)`` is the one line to print."""


class CheckpointError(StartupError):
    """The checkpoint is missing, truncated, tampered with or made for something else."""


class SettingsError(StartupError):
    """A setting is unknown, malformed or cannot be served."""


class VersionError(StartupError):
    """An installed library is not the version whose interfaces this code relies on."""


class ClientError(GroundrecError):
    """A call of the client failed."""


class UnreachableError(ClientError):
    """No answer came within the deadline; whether the call had an effect is not known."""


class ProblemError(ClientError):
    """The service answered with a problem document (RFC 9457).

    ``problem`` is its type's last part, ``pointers`` the fields at fault, ``retry_after_seconds`` what it asked for.
    """

    def __init__(
        self,
        status: int,
        problem: str,
        detail: str,
        *,
        request_id: str = "",
        pointers: tuple[str, ...] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{status} {problem}: {detail}")
        self.status = status
        self.problem = problem
        self.detail = detail
        self.request_id = request_id
        self.pointers = pointers
        self.retry_after_seconds = retry_after_seconds


class RefusedError(ProblemError):
    """The request is wrong; repeating it changes nothing."""


class NotAllowedError(ProblemError):
    """The key is missing, unknown or lacks a scope."""


class ThrottledError(ProblemError):
    """The key's own quota is used up."""


class UnavailableError(ProblemError):
    """The service is full, draining or in trouble."""


class RequestError(GroundrecError):
    """A request that cannot be answered; carries its problem type, HTTP status and, for 503, when to retry."""

    problem = "internal-error"
    title = "Internal error"
    status = 500
    retry_after_seconds: int | None = None

    def __init__(self, detail: str, *, pointer: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer


class UnauthorizedError(RequestError):
    """No key came along, or none that is known."""

    problem = "unauthorized"
    title = "An API key is needed"
    status = 401


class ForbiddenError(RequestError):
    """The key is known and lacks the scope."""

    problem = "forbidden"
    title = "The key may not do this"
    status = 403


class UnknownItemError(RequestError):
    """The catalogue has no item of that id."""

    problem = "unknown-item"
    title = "There is no such item"
    status = 404


class UnknownModelError(RequestError):
    """No model of that version is served by this replica."""

    problem = "unknown-model"
    title = "There is no such model"
    status = 404


class ConflictError(RequestError):
    """What is asked does not fit what is served or under way."""

    problem = "conflict"
    title = "That cannot be done now"
    status = 409


class MediaTypeError(RequestError):
    """The body is not declared to be JSON."""

    problem = "unsupported-media-type"
    title = "The body must be declared as JSON"
    status = 415


class QuotaError(RequestError):
    """The key's own quota is used up; says when enough of it has come back."""

    problem = "quota-exceeded"
    title = "Your quota is used up"
    status = 429

    def __init__(self, detail: str, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class InvalidRequestError(RequestError):
    """The request itself is wrong; ``pointer`` is the JSON pointer of the field."""

    problem = "invalid-request"
    title = "The request is invalid"
    status = 422


class UnknownVersionError(RequestError):
    """The engine no longer holds the catalogue version the request was admitted under."""

    problem = "catalog-version-gone"
    title = "The catalogue version is gone"
    status = 503
    retry_after_seconds = 1


class OverloadedError(RequestError):
    """The server is full; nothing was started."""

    problem = "overloaded"
    title = "The server is full"
    status = 503
    retry_after_seconds = 1


class DeadlineError(RequestError):
    """The request's deadline passed before an answer existed."""

    problem = "deadline-exceeded"
    title = "The deadline passed"
    status = 503
    retry_after_seconds = 1


class EngineError(RequestError):
    """The engine failed or is gone."""

    problem = "engine-unavailable"
    title = "The engine is unavailable"
    status = 503
    retry_after_seconds = 2


class StorageError(RequestError):
    """Redis did not acknowledge a write or could not be read."""

    problem = "storage-unavailable"
    title = "Storage is unavailable"
    status = 503
    retry_after_seconds = 2


class StorageFullError(StorageError):
    """Redis has no memory left for writes; reads go on."""

    problem = "storage-full"
    title = "Storage is full"
    retry_after_seconds = 30
