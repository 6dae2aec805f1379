"""What is shown in a terminal: the parts of rich that we use, loaded by those who show something."""

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

__all__ = [
    "BarColumn",
    "Console",
    "Live",
    "MofNCompleteColumn",
    "Progress",
    "Table",
    "Text",
    "TextColumn",
    "TimeRemainingColumn",
    "escape",
]
