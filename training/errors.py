"""What training raises on purpose; the message says what is wrong and how to mend it.

TrainingError         exit code 2, one line
├── DataError         the user's items or interactions
├── RecipeError       a recipe's key or value
├── GateError         a quality gate was missed, e.g. collapsed codes
├── ResumeError       what a stopped run left behind cannot be continued
└── PeerError         another process of the same run failed
"""


class TrainingError(Exception):
    """Root of all of training's errors."""


class DataError(TrainingError):
    """The data cannot be used; lists file, row and field of the first defects."""


class RecipeError(TrainingError):
    """A recipe names an unknown key or an impossible value."""


class GateError(TrainingError):
    """A quality gate was missed; training stops rather than export a bad checkpoint."""


class ResumeError(TrainingError):
    """State on disk does not belong to this recipe or is damaged."""


class PeerError(TrainingError):
    """Another process of this run ended, so this one does; the other one's line says why."""
