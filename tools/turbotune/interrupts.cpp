#include "interrupts.h"

#include <signal.h>
#include <unistd.h>

#include "exit_code.h"

namespace turbotune::cli {
namespace {

std::atomic<int> interrupt_count{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");
struct sigaction previous_int, previous_term, previous_hangup, previous_alarm;

// Only async-signal-safe calls below.
void on_alarm(int) {
    _exit(kInterrupted);
}

void on_interrupt(int) {
    if (interrupt_count.fetch_add(1) == 0) {
        const char text[] = "\nturbotune: finishing what is under way; Ctrl-C again ends at once\n";
        [[maybe_unused]] const auto written = write(STDERR_FILENO, text, sizeof text - 1);
        return;
    }
    alarm(2);  // seconds; a sweep that looks at the count is gone long before
}

void take(int signal_number, void (*handler)(int), struct sigaction* previous) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, previous);
}

}  // namespace

Interrupts::Interrupts() {
    interrupt_count = 0;
    take(SIGINT, on_interrupt, &previous_int);
    take(SIGTERM, on_interrupt, &previous_term);
    take(SIGHUP, on_interrupt, &previous_hangup);
    if (previous_hangup.sa_handler == SIG_IGN) sigaction(SIGHUP, &previous_hangup, nullptr);  // nohup
    take(SIGALRM, on_alarm, &previous_alarm);
}

Interrupts::~Interrupts() {
    alarm(0);
    sigaction(SIGINT, &previous_int, nullptr);
    sigaction(SIGTERM, &previous_term, nullptr);
    sigaction(SIGHUP, &previous_hangup, nullptr);
    sigaction(SIGALRM, &previous_alarm, nullptr);
}

const std::atomic<int>* Interrupts::count() const {
    return &interrupt_count;
}

}  // namespace turbotune::cli
