"""Federated summaries: counts, moments, extremes, quantiles and categories of every column.

Clients hold different rows of the same columns, with gaps and text as they are. Each statistic has
one request, so a run asks only for the statistics that it needs. `fedlib.tables.pipeline` uses the
same requests to scale, fill and encode the columns.

Source: T. Chan, G. Golub, R. LeVeque, Algorithms for computing the sample variance, The American
Statistician 37, 1983, for moments of several clients.
"""

from fedlib.core.columns import read_columns
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.flow import TableSummary, summarise
from fedlib.tables.summary.messages import (
    BinCounts,
    CategoryCounts,
    ColumnDescription,
    CountBins,
    CountCategories,
    DescribeColumns,
    Extremes,
    FindExtremes,
    SumValues,
    ValueMoments,
)

__all__ = [
    "BinCounts",
    "CategoryCounts",
    "ColumnDescription",
    "CountBins",
    "CountCategories",
    "DescribeColumns",
    "Extremes",
    "FindExtremes",
    "SumValues",
    "SummaryClient",
    "TableSummary",
    "ValueMoments",
    "read_columns",
    "summarise",
]
