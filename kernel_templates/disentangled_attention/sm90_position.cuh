// Position scores of near tiles. Q.PKchunk and K.PQchunk are matrix products over distances; the shift "column =
// distance" is undone on the way through fp16 buffers: C[query row][key], T[key][query row].
// needs: sm90_layout.cuh, sm90_shift.cuh

// The products of a near tile: those of K first, since T must be complete in all warps before it is read; a unit of
// keys with the chunks of its query rows, for each unit that the warpgroup makes; then Q with its chunks.
constexpr int t_chunks = t_columns / 64 + 1;
constexpr int t_products = p2c ? t_chunks * (shared_t ? 1 : units) : 0;
constexpr int products = has_bias ? t_products + (c2p ? units + 1 : 0) : 1;

struct Product {
    bool of_query;
    int unit, chunk;  // chunk: in order of keys
};

__device__ constexpr Product product_of(int job) {
    if (job < t_products) return {false, job / t_chunks, job % t_chunks};
    return {true, 0, job - t_products};
}

// Where a near tile's scores are, for one thread of warpgroup `group`.
struct ScoreBuffers {
    u32 c_store, t_store;  // row 2g of this thread's warp, column 16 * (warp + c)
    u32 c_read, t_read;    // this thread's ldmatrix rows
    int place;             // warp + c: which 16 columns of a chunk are this thread's
    u32 pairs;             // where a tile's ldmatrix rows of this thread are, in paired order, from the tile's first row on

    __device__ __forceinline__ ScoreBuffers(u32 shared, int group, const Lane& lane) {
        const u32 c0 = shared + scratch_offset + spill_bytes + (4 * group + lane.warp) * warp_bytes;
        const u32 t0 = shared + t_offset + spill_bytes + (shared_t ? 0 : 4 * units * group * t_group_bytes);
        const int column = 16 * (lane.warp + lane.c) + 2 * lane.g;
        place = lane.warp + lane.c;
        pairs = operand_place<true>(16 * lane.warp, lane);
        c_store = c0 + 2 * lane.g * c_pitch + 2 * column;
        t_store = t0 + (lane.warp + (shared_t ? 4 * group : 0)) * t_group_bytes + 2 * lane.g * t_pitch + 2 * column;
        c_read = c0 + (lane.lane & 15) * c_pitch + 16 * (lane.lane >> 4);
        t_read = t0 + ((lane.lane & 7) + 8 * (lane.lane >> 4)) * t_pitch +
                 2 * ((shared_t ? 64 * group : 0) + 16 * lane.warp + 8 * (lane.lane >> 3 & 1));
    }
};

// Chunk `number` of C, 0 .. units, in order of keys: column = row + x + 64 * number - 63.
__device__ __forceinline__ void store_c(const ShiftedScores& x, const ScoreBuffers& at, int number) {
    const bool active = number == 0 ? at.place >= 3 : number == units ? at.place <= 3 : true;
    x.store<1, c_pitch>(at.c_store + 2 * (64 * number - 63), active);
}

// Chunk `number` of a unit of T, 0 .. t_chunks - 1, in order of keys: column = row + x + 64 * (t_chunks - 2 - number).
__device__ __forceinline__ void store_t(const ShiftedScores& x, const ScoreBuffers& at, int unit, int number) {
    const bool active = number == 0 ? at.place <= 3 : number == t_chunks - 1 ? at.place >= 3 : true;
    x.store<0, t_pitch>(at.t_store + (shared_t ? 0 : 4 * unit * t_group_bytes) + 128 * (t_chunks - 2 - number), active);
}

// Position scores of one unit of a warp on their way into accumulators.
struct UnitScores {
    u32 c[4][4], t[4][4];

    __device__ __forceinline__ UnitScores(const ScoreBuffers& at, int unit) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            if constexpr (c2p) load_matrices(c[x], at.c_read + 128 * unit + 32 * x);
            if constexpr (p2c) load_matrices_transposed(t[x], at.t_read + (4 * unit + x) * t_group_bytes);
        }
    }

    __device__ __forceinline__ void add_up(float (&s)[32]) const {
#pragma unroll
        for (int x = 0; x < 4; ++x)
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int first = (2 * x + (part >> 1)) * 4 + 2 * (part & 1);
                sum_scores(s[first], s[first + 1], c[x][part], t[x][part]);
            }
    }
};
