#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace turbotune::cli {
namespace {

bool is_terminal(std::FILE* stream) {
    // mpirun gives each rank a terminal of its own and shows what they print in one.
    if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) return false;
    const char* term = std::getenv("TERM");
    return isatty(fileno(stream)) != 0 && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

int terminal_columns(std::FILE* stream) {
    winsize size{};
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

}  // namespace

Progress::Progress(std::FILE* stream) : Progress(stream, is_terminal(stream), 0) {}

Progress::Progress(std::FILE* stream, bool terminal, int columns, std::chrono::milliseconds quiet)
    : stream_(stream),
      terminal_(terminal),
      fixed_columns_(columns),
      quiet_(quiet),
      last_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
    clear();
}

void Progress::update(const std::string& text, bool at_once) {
    text_ = text;
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_) {
        if (now - last_ >= quiet_) print(text);
        return;
    }
    if (!at_once && drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    draw();
}

void Progress::draw() {
    const int columns = fixed_columns_ > 0 ? fixed_columns_ : terminal_columns(stream_);
    // One column stays free: writing into the last one makes some terminals wrap.
    const std::string line = text_.substr(0, static_cast<std::size_t>(columns > 1 ? columns - 1 : 1));
    std::fprintf(stream_, "\r%s\x1b[K", line.c_str());
    std::fflush(stream_);
    drawn_ = true;
}

void Progress::print(const std::string& line) {
    if (drawn_) std::fputs("\r\x1b[K", stream_);
    std::fprintf(stream_, "%s\n", line.c_str());
    if (drawn_) draw();
    std::fflush(stream_);
    last_ = std::chrono::steady_clock::now();
}

void Progress::clear() {
    if (!drawn_) return;
    std::fputs("\r\x1b[K", stream_);
    std::fflush(stream_);
    drawn_ = false;
}

}  // namespace turbotune::cli
