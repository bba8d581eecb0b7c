// A tile of dS by distance, as a wgmma operand in shared memory: [2 panels][64 rows][64 distances], swizzled by 128
// bytes. Row i of the tile holds its element y in column y + 63 - i, so that a column is one distance, -63 .. 64; the
// zeros around a row's 64 elements stay where they are from tile to tile.
// needs: backward_layout.cuh, sm90_shift.cuh

constexpr int panel_bytes = 64 * 128;
constexpr int strip_bytes = 2 * panel_bytes;
constexpr int near_pitch = 1024 + 16;  // of 8 keys of dS: keeps ldmatrix free of bank conflicts
constexpr u32 strip_high = descriptor_high(8 * 128, 1);

struct Strips {
    u32 base;        // address of the buffer
    bool transpose;  // rows are queries, else keys
    u32 from;        // this thread's place in a tile of dS
    u32 chunk[4];    // addresses of four neighbouring 16-byte chunks of its row in the second of its warp's groups of
                     // 8; the words of the first group start in chunk 1, 8 rows up, those of the second in chunk 0
    u32 start;       // bytes into that chunk
    u32 selector;    // permutation that joins neighbouring words
    bool odd, first, last;

    __device__ __forceinline__ Strips(u32 address, int thread, bool rows_are_queries)
        : base(address), transpose(rows_are_queries) {
        const int warp = thread / 32 % 4, lane = thread % 32;
        int r, c;  // a thread holds 16 neighbours, from 16c on, of row r of 8
        if (transpose) {
            r = order_of(lane >> 2), c = lane & 3;
            from = 2 * (lane >> 1 & 3) * near_pitch + 2 * warp * 128 + (lane >> 3) * 32 + (lane & 1) * 16;
        } else {
            r = lane & 7, c = lane >> 3;
            from = 2 * warp * near_pitch + 2 * c * 128 + r * 16;
        }
        const int i = 16 * warp + 8 + r, at = 16 * c + 63 - i;
        odd = at & 1;
        selector = odd ? 0x5432u : 0x7654u;
        start = u32(2 * at) & 12u;
        first = c == 0, last = c == 3;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int number = (at >> 3) + n;
            chunk[n] = base + (number >> 3) * panel_bytes + i * 128 + ((number & 7 ^ r) << 4);
        }
    }

    // By a warpgroup.
    __device__ __forceinline__ void clear(int thread) const {
        for (int i = 16 * thread; i < strip_bytes; i += 16 * 128) store_shared16(base + i, {0, 0, 0, 0});
    }

    // A tile of dS of `near_pitch`: 16 neighbours of the thread's row in the first or second of its warp's groups.
    __device__ __forceinline__ void load(u32 (&words)[8], u32 tile, int group) const {
        if (transpose) {
#pragma unroll
            for (int x = 0; x < 2; ++x) {
                u32 part[4];
                load_matrices_transposed(part, tile + from + group * 128 + x * near_pitch);
#pragma unroll
                for (int i = 0; i < 4; ++i) words[4 * x + i] = part[i];
            }
        } else {
#pragma unroll
            for (int x = 0; x < 2; ++x) {
                const Words4 w = load_shared16(tile + from + group * near_pitch + x * 128);
                u32* natural = &words[4 * x];  // from 0 4, 1 5, 2 6, 3 7
                natural[0] = permute_bytes(w.x, w.y, 0x5410), natural[1] = permute_bytes(w.z, w.w, 0x5410);
                natural[2] = permute_bytes(w.x, w.y, 0x7632), natural[3] = permute_bytes(w.z, w.w, 0x7632);
            }
        }
    }

    __device__ __forceinline__ void store(const u32 (&words)[8], int group) const {
        const u32 other = __shfl_up_sync(0xffffffffu, words[7], transpose ? 1 : 8);
        const u32 before = first ? 0 : other;
        u32 at = start;
        asm volatile("" : "+r"(at));  // the words' addresses must not stay in registers
        auto address = [&](int n) {
            const int k = n / 4 + 1 - group;
            const u32 in_chunk = at + 4 * (n & 3);
            return (in_chunk < 16 ? chunk[k] : chunk[k + 1]) + (in_chunk & 12u) - (group ? 0 : 8 * 128);
        };
#pragma unroll
        for (int n = 0; n < 8; ++n)
            store_word(address(n), permute_bytes(n == 0 ? before : words[n - 1], words[n], selector));
        if (odd && last) store_word(address(8), words[7] >> 16);
    }

    // A panel as an operand with distances along its rows' elements, in units of 16 bytes: rows 16 * step .. of 64.
    __device__ __forceinline__ u32 operand(int panel, int step) const {
        return descriptor_low((base + panel * panel_bytes) / 16 + step * 128, panel_bytes);
    }
};
