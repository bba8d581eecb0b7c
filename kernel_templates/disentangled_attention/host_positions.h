// Which position row each distance needs, as the host kernels walk over tiles from the last to the first, so that the
// distances of a block's own rows to those of the tile grow: i - j where the block is of queries and the tiles are of
// keys (forward), j - i where it is the other way round (backward).

#include "common/host_vector.h"

// Numbers the distances of a tile's window: a rank grows by one wherever the slot differs from that of the distance
// below. Neighbouring distances therefore have ranks at most one apart, whatever the slot table holds, and distances
// that share a slot share a rank: far fewer position rows than distances in the logarithmic region, one beyond the
// band.
class DistanceRanks {
  public:
    enum class Sign { query_minus_key = 1, key_minus_query = -1 };

    // ranks holds `window` numbers; `highest` is the largest distance that will ever be asked for. `slots` is by i - j.
    DistanceRanks(const int* slots, int band, int* ranks, int window, int lowest, int highest,
                  Sign sign = Sign::query_minus_key)
        : slots_(slots),
          band_(band),
          sign_(static_cast<int>(sign)),
          ranks_(ranks),
          window_(window),
          top_(lowest),
          highest_(highest),
          cursor_(lowest) {
        if (cursor_ < -band_) cursor_ = -band_;
        ranks_[0] = 0;
        extend(1);
    }

    // ranks()[w] belongs to the distance lowest + w.
    const int* ranks() const { return ranks_; }

    void advance(int distances) {
        __builtin_memmove(ranks_, ranks_ + distances, sizeof(int) * (window_ - distances));
        extend(window_ - distances);
    }

    // The slots of the next `count` ranks not yet handed out; repeats the last one when there are no more.
    void next_slots(int* to, int count) {
        for (int n = 0; n < count; ++n) {
            const int slot = slot_of(cursor_);
            to[n] = slot;
            int next = cursor_;
            while (next < highest_ && slot_of(next) == slot) ++next;
            if (slot_of(next) != slot) cursor_ = next;
        }
    }

    int slot_of(int distance) const {
        const int bounded = distance < -band_ ? -band_ : distance > band_ ? band_ : distance;
        return slots_[sign_ * bounded + band_];
    }

  private:
    void extend(int from) {
        int slot = slot_of(top_);
        for (int w = from; w < window_; ++w) {
            const int next = slot_of(++top_);
            ranks_[w] = ranks_[w - 1] + (next != slot ? 1 : 0);
            slot = next;
        }
    }

    const int* slots_;
    int band_;
    int sign_;
    int* ranks_;
    int window_;
    int top_;  // the distance of ranks_[window_ - 1]
    int highest_;
    int cursor_;  // the lowest distance of the next rank to hand out
};

// to[t][lane] = rows[t + lane][lane], in place: each step moves by one power of two the lanes that have that bit.
inline void shear(Vec (&rows)[2 * kLanes - 1]) {
    const VecInt lane = lane_numbers();
#pragma GCC unroll 4
    for (int bit = kLanes / 2; bit > 0; bit /= 2) {
        const VecInt moves = (lane & bit) != 0;
#pragma GCC unroll 32
        for (int t = 0; t < kLanes - 1 + bit; ++t) rows[t] = moves ? rows[t + bit] : rows[t];
    }
}

// The transpose of shear: to[t + lane][lane] = rows[t][lane] for t < kLanes, in place, and zero elsewhere.
inline void unshear(Vec (&rows)[2 * kLanes - 1]) {
    const VecInt lane = lane_numbers();
#pragma GCC unroll 16
    for (int t = kLanes; t < 2 * kLanes - 1; ++t) rows[t] = Vec{};
#pragma GCC unroll 4
    for (int bit = 1; bit < kLanes; bit *= 2) {
        const VecInt moves = (lane & bit) != 0;
#pragma GCC unroll 32
        for (int t = kLanes + 2 * bit - 2; t >= 0; --t) rows[t] = moves ? (t < bit ? Vec{} : rows[t - bit]) : rows[t];
    }
}

// first[n] = the first of the window's distances that has the rank ranks[0] + n; kLanes more entries lie beyond every
// vector.
inline void find_first_of_ranks(const int* ranks, int window, int* first) {
    for (int w = window - 1; w >= 0; --w) first[ranks[w] - ranks[0]] = w;
    const int distinct = ranks[window - 1] - ranks[0] + 1;
    for (int n = distinct; n < distinct + kLanes; ++n) first[n] = window + kLanes;
}

// The lanes of x belong to the distances from `at` on. Lane n of the result: the sum over those of rank ranks[at] + n.
inline Vec sum_by_rank(Vec x, const int* ranks, const int* first_of_rank, int at) {
    const int* own = ranks + at;
    if (own[kLanes - 1] - own[0] == kLanes - 1) return x;
    const VecInt rank = load(own);
    // Each lane gathers the lanes above it that share its rank: 2, then 4, then 8 of them ...
    const auto gather = [&]<int step>() {
        if constexpr (step < kLanes) {
            const Vec above = shift_down<step>(x);
            x += rank == load(own + step) ? above : Vec{};
        }
    };
    gather.template operator()<1>();
    gather.template operator()<2>();
    gather.template operator()<4>();
    gather.template operator()<8>();
    // ... and the first lane of every rank has the whole sum.
    const VecInt first = load(first_of_rank + (own[0] - ranks[0])) - at;
    const VecInt lane = first < 0 ? VecInt{} : first;
    const Vec sums = permute(x, lane & (kLanes - 1));
    return lane < kLanes ? sums : Vec{};
}
