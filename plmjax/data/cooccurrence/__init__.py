"""Cooccurrence counts of words on disk, for training GloVe (Pennington et al., EMNLP 2014).

    DIRECTORY/
      cells-00000.bin ...    records of int32 row, int32 column, float32 value, little-endian, in shuffled order
      manifest.json          written last: settings, dataset, number of cells, sizes and checksums
      begun.json             exists while the count is not complete, beside the files of finished parts (`runs`)

The value of a cell is a sum of 1 / distance over all places where the column's word is at most `window` words from the
row's word in the same document. Excluded words are removed first, so that windows reach across them
(stanfordnlp/GloVe cooccur.c). A symmetric count covers both sides of the row's word, and a cell and its mirror are
stored side by side. Other counts cover only the left side.

Sums are integers in units of 1 / L, where L is the least common multiple of the distances. So they are exact, and no
bit of the result depends on the cuts of the text, the memory or the number of processes.
"""

from plmjax.data.cooccurrence.cells import CELL, MANIFEST, Cells, Counting, open_cells
from plmjax.data.cooccurrence.counting import MEMORY, check_words, count

__all__ = ["CELL", "MANIFEST", "MEMORY", "Cells", "Counting", "check_words", "count", "open_cells"]
