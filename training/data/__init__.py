"""Readers and splits: from files to items, sequences and leave-last-out examples."""

from training.data.amazon import read_amazon
from training.data.dataset import CatalogItem, Dataset, Interaction
from training.data.defects import Defect, DefectReport, OnDefect
from training.data.movielens import fetch_movielens, read_movielens
from training.data.sources import load
from training.data.split import Example, Split, cold_items_by_time, leave_last_out, popularity
from training.data.tables import read_tables
from training.errors import DataError

__all__ = [
    "CatalogItem",
    "DataError",
    "Dataset",
    "Defect",
    "DefectReport",
    "Example",
    "Interaction",
    "OnDefect",
    "Split",
    "cold_items_by_time",
    "fetch_movielens",
    "leave_last_out",
    "load",
    "popularity",
    "read_amazon",
    "read_movielens",
    "read_tables",
]
