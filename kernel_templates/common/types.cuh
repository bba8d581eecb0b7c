// Fixed-width integers: the run-time compiler has no <stdint.h>.
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using s64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(s64) == 8, "widths of the built-in types");

struct alignas(16) Words4 {
    u32 x, y, z, w;
};

struct alignas(8) Float2 {
    float x, y;
};

struct alignas(16) Float4 {
    float x, y, z, w;
};
