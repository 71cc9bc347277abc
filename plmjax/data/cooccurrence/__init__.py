"""How often words stand near each other: the counts that GloVe is trained on, on disk (Pennington et al., EMNLP 2014).

    DIRECTORY/
      cells-00000.bin ...    records of int32 row, int32 column, float32 value, little-endian, in shuffled order
      ledger.json            written last: settings, dataset, number of cells, sizes and checksums
      begun.json             instead of the ledger while the count is unfinished, with runs (`runs`) of what was counted

The value of a cell is the sum over all places where the column's word stands at most `window` words from the row's, in
the same document, of one over the distance. Words that are left out are as if not there, so that windows reach over
them (stanfordnlp/GloVe cooccur.c). If it is symmetric, the row's word looks to both sides, and a cell and its mirror
stand side by side; otherwise it looks to the left alone.

Sums are kept as whole multiples of one over the least common multiple of the distances. They are exact, so that no bit
of the result depends on where the text is cut, on the memory or on the number of processes.
"""

from plmjax.data.cooccurrence.cells import CELL, LEDGER, Cells, Counting, open_cells
from plmjax.data.cooccurrence.counting import MEMORY, check_words, count

__all__ = ["CELL", "LEDGER", "MEMORY", "Cells", "Counting", "check_words", "count", "open_cells"]
