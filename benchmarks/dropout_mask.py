"""Which weights dropout drops, as kernel_templates/disentangled_attention/dropout.h says."""


def arguments(probability, seed, offset):
    """keys, threshold, offset and the scale of kept weights, as DropoutParams of params.h holds them."""
    low, high, number = seed & 0xffffffff, seed >> 32, min(65535, round(probability * 65536))
    keys = [x & 0xffffffff for turn in range(10) for x in (low + turn * 0x9e3779b9, high + turn * 0xbb67ae85)]
    return keys, [0xffffffff if number >> (15 - bit) & 1 else 0 for bit in range(16)], offset, 65536 / (65536 - number)


def kept(params, batch_head, length):
    """numpy bool [length, length] of one head. `params`: has keys, threshold and offset."""
    import numpy as np   # compiling needs none
    word = np.uint64
    full = word(0xffffffff)

    def rotated(plane, left):
        return (plane << word(left) | plane >> word(32 - left)) & full

    rows, columns = (length + 15) // 16 * 8, (length + 63) // 64 * 4
    row_group, column_group = np.meshgrid(np.arange(rows, dtype=word), np.arange(columns, dtype=word), indexing="ij")
    x, y, z, w = column_group, row_group, np.full_like(row_group, batch_head), np.full_like(row_group, params.offset)
    for turn in range(10):   # Philox4x32-10
        a, b = word(0xd2511f53) * x, word(0xcd9e8d57) * z
        x, y, z, w = ((b >> word(32)) ^ y ^ word(params.keys[2 * turn]), b & full,
                      (a >> word(32)) ^ w ^ word(params.keys[2 * turn + 1]), a & full)
    words = [x, y, z, w]
    planes = words + [rotated(words[i], 7) ^ rotated(words[(i + 1) % 4], 19) for i in range(4)]
    planes += [rotated(plane, 11) for plane in planes]
    below = np.zeros_like(row_group)
    for plane, bits in zip(reversed(planes), reversed(params.threshold[:])):
        inverse = ~plane & full
        below = (inverse & below) | (word(bits) & (inverse | below))
    row, column = np.arange(length)[:, None], np.arange(length)[None, :]
    bit = (column & 1) * 16 + (row >> 3 & 1) * 8 + (column >> 3 & 7)
    of_patch = below[(row >> 4) * 8 + (row & 7), (column >> 6) * 4 + (column >> 1 & 3)]
    return (of_patch >> bit.astype(word) & word(1)) == 0
