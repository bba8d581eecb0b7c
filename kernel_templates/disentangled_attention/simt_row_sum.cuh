// needs: side of the includer

// Over the `side` threads that share rows; the same result in each.
__device__ __forceinline__ float sum_of_row(float x) {
#pragma unroll
    for (int step = 2; step <= side; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
