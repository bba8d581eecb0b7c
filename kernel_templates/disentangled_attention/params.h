// Arguments of the kernels: one struct by value. Included by the templates and by the runtime, so it uses built-in
// types only. Strides are in elements.
#pragma once

// Dropout of the attention weights (dropout.h). Unused, and all zero, without dropout.
struct DropoutParams {
    unsigned keys[28];                // round keys of the seed
    unsigned threshold[8];            // the first eight bits of round(p * 2^40), the most significant first, as 0 or ~0
    unsigned fraction;                // its other 32
    unsigned offset;                  // of the counter
    float scale;                      // 1 / (1 - p), of the weights kept
};

// A tensor map of the CUDA driver; opaque.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// The rows of q, k and v as tensor maps, for kernels that load boxes: dimensions (d, row, head, batch), packed: batch 1;
// boxes of 64 rows x min(head_dim, 64), swizzled by the bytes of their rows.
struct ForwardMaps {
    TensorMap q, k, v;
};

struct ForwardParams {
    const void* q;                    // element (b, i, h, d) at b*q_batch + i*q_row + h*q_head + d
    const void* k;
    const void* v;
    const void* position_key;         // element (slot, h, d) at slot*row + h*head + d
    const void* position_query;
    const unsigned char* mask;        // element (b, j) at b*mask_batch + j; 1 = keep
    const int* cu_seqlens;            // packed: sequence b has rows cu_seqlens[b] .. cu_seqlens[b+1]-1
    const int* slots;                 // slot of distance delta = i - j at [delta + band]; ends repeat beyond
    void* out;
    float* lse;                       // element (b, h, i) at (b*heads + h)*length + i; packed: h*tokens + row; null: none
    void* workspace;
    long long q_batch, q_row, q_head;
    long long k_batch, k_row, k_head;
    long long v_batch, v_row, v_head;
    long long out_batch, out_row, out_head;
    long long position_key_row, position_key_head;
    long long position_query_row, position_query_head;
    long long mask_batch;
    long long tokens;                 // packed: rows of q
    int batch, heads, length;         // packed: length is the longest sequence
    int band, span;                   // |delta| >= band: constant slot (0 or 2*span - 1 side)
    float scale_log2;                 // scale * log2(e)
    DropoutParams dropout;
};

// Arguments of every kernel of the backward pass.
//   P_ij = 2^(scale_log2 * s_ij - lse_i),  dP = dO V^T (kept elements times dropout.scale, dropped ones 0),
//   Delta_i = sum_d O_id dO_id,  dS = scale * P (dP - Delta)
// A hidden query row has s = 0 and lse = log2(length), so P = 1/length; its dS is 0, and its P still reaches dV.
struct BackwardParams {
    const void* q;                    // as in ForwardParams
    const void* k;
    const void* v;
    const void* position_key;
    const void* position_query;
    const unsigned char* mask;
    const int* cu_seqlens;
    const int* slots;
    const void* out;                  // of the forward pass
    const void* dout;                 // gradient of out
    const float* lse;                 // of the forward pass, laid out as in ForwardParams
    void* dq;
    void* dk;
    void* dv;
    void* d_position_key;             // gradients of the tables, summed over batch; every slot is written
    void* d_position_query;
    void* workspace;
    long long q_batch, q_row, q_head;
    long long k_batch, k_row, k_head;
    long long v_batch, v_row, v_head;
    long long out_batch, out_row, out_head;
    long long dout_batch, dout_row, dout_head;
    long long dq_batch, dq_row, dq_head;
    long long dk_batch, dk_row, dk_head;
    long long dv_batch, dv_row, dv_head;
    long long position_key_row, position_key_head;
    long long position_query_row, position_query_head;
    long long d_position_key_row, d_position_key_head;
    long long d_position_query_row, d_position_query_head;
    long long mask_batch;
    long long tokens;
    long long regions[8];             // byte offsets into the workspace, as the tier lays it out
    int batch, heads, length;
    int band, span;
    float scale, scale_log2;
    DropoutParams dropout;
};
