// fmt compiled once, from its own headers: with FMT_HEADER_ONLY every file that formats pays three seconds. The build
// checks that this file satisfies the installed version, and falls back to header only where it does not.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);
template std::locale locale_ref::get<std::locale>() const;
}  // namespace detail
FMT_END_NAMESPACE
