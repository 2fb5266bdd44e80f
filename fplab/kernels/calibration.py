"""The entropy rule of calibration: the divergence at every cut of a histogram."""

import numpy as np

from . import jit


@jit
def divergences(bins, start, levels, out):
    """``out[i]`` = KL(reference || quantised) with ``start + i`` bins kept; float64, infinite where it does not exist.

    ``bins``: int64 counts. A bin j of ``cut`` belongs to group ``j * levels // cut``; groups are runs of bins, so one
    pass finds the runs, by what is left of ``j * levels`` after division by ``cut``, and a second adds the terms.
    Scratch: the image of each bin.
    """
    total = np.float64(bins.sum())
    image = np.zeros(bins.size)
    kept = 0.0
    for j in range(start):
        kept += bins[j]
    for i in range(out.size):
        cut = start + i
        mass, first, filled, image_total, left = 0.0, 0, 0, 0.0, 0
        for j in range(cut):
            mass += bins[j]
            filled += bins[j] > 0
            left += levels
            if left >= cut:
                left = left - cut if left < 2 * cut else left % cut
                share = mass / max(filled, 1)
                for k in range(first, j + 1):
                    image[k] = share if bins[k] > 0 else 0.0
                    image_total += image[k]
                mass, first, filled = 0.0, j + 1, 0
        rest = total - kept
        result = 0.0
        for j in range(cut):
            reference = bins[j] + (rest if j + 1 == cut else 0.0)
            if reference > 0.0:
                p = reference / total
                result += p * np.log(p / (image[j] / image_total)) if image[j] > 0.0 else np.inf
        out[i] = result if image_total > 0.0 else np.inf
        if cut < bins.size:
            kept += bins[cut]
