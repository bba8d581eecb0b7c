// The workspace of one head of backward_reference.cpp, in doubles. Included by the template and by the runtime, so it
// uses built-in types only.
#pragma once

struct ReferenceWorkspace {
    long long head_dim, span, length;  // of the longest sequence

    constexpr long long table() const { return 2 * span * head_dim; }  // gradients of one position table
    constexpr long long rows() const { return length * head_dim; }     // dK or dV of one sequence
    constexpr long long per_head() const { return 2 * table() + 2 * rows() + 2 * length; }
};
