"""Which weights dropout drops, as kernel_templates/disentangled_attention/dropout.h says."""


def arguments(probability, seed, offset):
    """keys, threshold, fraction, offset and the scale of kept weights, as DropoutParams of params.h holds them."""
    low, high, number = seed & 0xffffffff, seed >> 32, round(probability * 2 ** 40)
    keys = [x & 0xffffffff for turn in range(14) for x in (low + turn * 0x9e3779b9, high + turn * 0xbb67ae85)]
    return (keys, [0xffffffff if number >> (39 - bit) & 1 else 0 for bit in range(8)], number & 0xffffffff, offset,
            1 / (1 - probability))


def kept(params, batch_head, length):
    """numpy bool [length, length] of one head. `params`: has keys, threshold, fraction and offset."""
    import numpy as np   # compiling needs none
    word = np.uint64
    full = word(0xffffffff)

    rows, columns = (length + 15) // 16 * 8, (length + 63) // 64 * 4
    row_group, column_group = np.meshgrid(np.arange(rows, dtype=word), np.arange(columns, dtype=word), indexing="ij")
    x, y = (column_group >> word(3)) * word(4) + (column_group & word(3)), row_group
    z, w = np.full_like(row_group, batch_head), np.full_like(row_group, params.offset)
    after = {}
    for turn in range(14):
        a, b = word(0xd2511f53) * x, word(0xcd9e8d57) * z
        x, y, z, w = ((b >> word(32)) ^ y ^ word(params.keys[2 * turn]), b & full,
                      (a >> word(32)) ^ w ^ word(params.keys[2 * turn + 1]), a & full)
        after[turn + 1] = [x, y, z, w]
    odd = (column_group & word(4)) != 0
    planes = [np.where(odd, *both) for both in zip(after[14] + after[12], after[10] + after[8])]
    below = np.where((planes[0] * word(0x9e3779b1) & full) < word(params.fraction), full, word(0))
    for plane, bits in zip(reversed(planes), reversed(params.threshold[:])):
        inverse = ~plane & full
        below = (inverse & below) | (word(bits) & (inverse | below))
    row, column = np.arange(length)[:, None], np.arange(length)[None, :]
    bit = (column & 1) * 16 + (row >> 3 & 1) * 8 + (column >> 3 & 7)
    of_patch = below[(row >> 4) * 8 + (row & 7), (column >> 6) * 4 + (column >> 1 & 3)]
    return (of_patch >> bit.astype(word) & word(1)) == 0
