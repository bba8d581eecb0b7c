#include "commands.h"

int main(int argc, char** argv) {
    return turbotune::cli::run(argc, argv);
}
