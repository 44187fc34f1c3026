"""Readers and splits: from files to items, sequences and leave-last-out examples."""

from training.data.dataset import CatalogItem, Dataset
from training.data.defects import Defect, DefectReport
from training.data.sources import load
from training.data.split import Example, Split, leave_last_out, popularity

__all__ = [
    "CatalogItem",
    "Dataset",
    "Defect",
    "DefectReport",
    "Example",
    "Split",
    "leave_last_out",
    "load",
    "popularity",
]
