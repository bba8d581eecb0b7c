// Sizes, shared memory and copies of backward_mma_kv.cu.
// needs: backward_layout.cuh, backward_sequence.cuh, mma_rows.cuh, mma_gradient.cuh, config

constexpr bool has_bias = c2p || p2c;
constexpr int block_keys = 16 * warps;
constexpr int step_groups = block_q / 16;
constexpr int tile_steps = tile_rows / block_q;
constexpr int step_bytes = block_q * row_bytes;
constexpr int hidden_words = (block_q + 31) / 32;
constexpr int patches = 2 * block_q;  // of 32 elements, of a step

constexpr int strip_chunks = block_keys / block_q + 1;  // pieces of block_q distances under one step
constexpr int ring_chunks = strip_chunks + stages - 1;
constexpr int ring_blocks = ring_chunks * step_groups;  // of 16 distances
constexpr int ring_bytes = ring_chunks * step_bytes;

constexpr int q_offset = 0;
constexpr int dout_offset = q_offset + stages * step_bytes;
constexpr int pk_offset = dout_offset + stages * step_bytes;
constexpr int pq_offset = pk_offset + (c2p ? ring_bytes : 0);
constexpr int k_offset = pq_offset + (p2c ? ring_bytes : 0);
constexpr int v_offset = k_offset + (resident ? 0 : block_keys * row_bytes);
constexpr int statistics_offset = v_offset + (resident ? 0 : block_keys * row_bytes);
constexpr int dropped_offset = statistics_offset + stages * block_q * 8;

static_assert(dropped_offset + (dropout ? 2 * patches * 4 : 0) == shared_bytes,
              "the launch asks for another size of shared memory");
static_assert(block_keys == tile_rows, "near tiles are told apart by 64 keys");
static_assert(block_q == 16 || block_q == 32 || block_q == 64, "queries of a step");
static_assert(step_groups % far_groups == 0, "far tiles take far_groups groups of 16 queries at a time");
static_assert(stages >= 2 && stages <= 4, "depth of the Q and dO ring");
static_assert(2 * stages * step_bytes >= block_keys * row_bytes, "gradients are staged where Q and dO were");
static_assert(threads % (8 * row_chunks) == 0, "a thread's rows of a step must be equal mod 8");
static_assert((block_q * row_chunks) % threads == 0, "every thread copies the same number of chunks of a step");

struct KvLoader {
    const BackwardParams& p;
    const HeadRows& rows;
    const u16 *q, *dout, *pk, *pq;  // this head's row 0
    u32 shared;
    int key0;                  // first key of the block
    int near_begin, near_end;  // steps
    int row, chunk;            // this thread's first row of a step, and its chunk of every row

    static constexpr int row_step = threads / row_chunks;
    static constexpr int copies = block_q / row_step;

    __device__ __forceinline__ KvLoader(const BackwardParams& p_, const HeadRows& rows_, u32 shared_, int key0_,
                                        NearRange near)
        : p(p_), rows(rows_), shared(shared_), key0(key0_) {
        q = static_cast<const u16*>(p.q) + rows.offset(p.q_batch, p.q_row, p.q_head);
        dout = static_cast<const u16*>(p.dout) + rows.offset(p.dout_batch, p.dout_row, p.dout_head);
        pk = static_cast<const u16*>(p.position_key) + rows.head * p.position_key_head;
        pq = static_cast<const u16*>(p.position_query) + rows.head * p.position_query_head;
        near_begin = near.begin * tile_steps, near_end = near.end * tile_steps;
        row = int(threadIdx.x) / row_chunks, chunk = int(threadIdx.x) % row_chunks;
    }

    // Rows first .. first + count - 1; zeros at or beyond the end of the sequence.
    template <int count>
    __device__ __forceinline__ void copy_rows(const u16* tensor, s64 row_stride, int first, u32 to) const {
        to += swizzled(row, chunk);
        const u16* from = tensor + (first + row) * row_stride + chunk * 8;
#pragma unroll
        for (int i = 0; i < count / row_step; ++i) {
            const bool valid = first + row + i * row_step < rows.length;
            copy_chunk(to + i * row_step * row_bytes, valid ? from : tensor, valid);
            from += row_step * row_stride;
            asm volatile("" : "+l"(from));  // opaque, or the multiples of the stride are kept in registers
        }
    }

    // Piece n of the strips: PQ's row r of it belongs to the distance `first` + r, PK's to the one below.
    __device__ __forceinline__ void strip(int n) const {
        const int first = near_begin * block_q - key0 - (block_keys - 1) + n * block_q + row;
        const u32 to = shared + (n % ring_chunks) * step_bytes + swizzled(row, chunk);
#pragma unroll
        for (int i = 0; i < copies; ++i) {
            const u32 at = to + i * row_step * row_bytes;
            if constexpr (c2p)
                copy_chunk(at + pk_offset, pk + slot_at(p, first + i * row_step - 1) * p.position_key_row + chunk * 8,
                           true);
            if constexpr (p2c)
                copy_chunk(at + pq_offset, pq + slot_at(p, first + i * row_step) * p.position_query_row + chunk * 8,
                           true);
        }
    }

    __device__ __forceinline__ void step(int t) const {
        const int stage = t % stages, first = t * block_q;
        copy_rows<block_q>(q, p.q_row, first, shared + q_offset + stage * step_bytes);
        copy_rows<block_q>(dout, p.dout_row, first, shared + dout_offset + stage * step_bytes);
        const bool near = t >= near_begin && t < near_end;
        const int tid = int(threadIdx.x), end = !has_bias || near ? -1 : t < near_begin ? end_low : end_high;
        if (tid < block_q)
            copy_statistics(shared + statistics_offset + (stage * block_q + tid) * 8,
                            statistics_plane(p, end) + rows.statistics + first + tid, first + tid < rows.length);
        if constexpr (has_bias) {
            if (near) {
                const int n = t - near_begin;
                if (n == 0)
                    for (int piece = 0; piece < strip_chunks - 1; ++piece) strip(piece);
                strip(n + strip_chunks - 1);
            }
        }
    }
};

// Bit i: query i of the step is hidden.
__device__ __forceinline__ void read_hidden(u32 (&hidden)[hidden_words], const KvLoader& load, int t) {
#pragma unroll
    for (int word = 0; word < hidden_words; ++word) {
        hidden[word] = 0;
        if constexpr (mask) {
            const int lane = int(threadIdx.x) % 32, i = t * block_q + 32 * word + lane;
            const u8* keep = load.p.mask + load.rows.batch * load.p.mask_batch;
            hidden[word] = __ballot_sync(0xffffffffu, 32 * word + lane < block_q && i < load.rows.length && !keep[i]);
        }
    }
}

// The patches of a step: patch 32 * (query / 16) + 4 * (query % 8) + (key >> 1) % 4, at buffer t % 2.
__device__ __forceinline__ void compute_patches(const KvLoader& load, int t) {
    const int patch = int(threadIdx.x);
    if (patch >= patches) return;
    const int row_group = (t * step_groups + patch / 32) * 8 + (patch >> 2 & 7),
              column_group = load.key0 / 16 + (patch & 3);
    const u32 word = dropped_patch(load.p.dropout, unsigned(load.rows.batch * load.p.heads + load.rows.head), row_group,
                                   column_group);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(load.shared + dropped_offset + ((t & 1) * patches + patch) * 4),
                 "r"(word)
                 : "memory");
}
