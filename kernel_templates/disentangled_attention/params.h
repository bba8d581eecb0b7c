// Arguments of the forward kernels: one struct by value. Included by the templates and by the
// runtime, so it uses built-in types only. Strides are in elements.
#pragma once

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
};
