# `cmake --install`: the program, libturbotune with turbotune.h, the profiles that ship, and a package for
# find_package(turbotune), whose one target is turbotune::turbotune. The C++ headers belong to the build tree.
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/turbotune)
install(TARGETS turbotune_shared EXPORT turbotune)
install(FILES runtime/include/turbotune/turbotune.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/turbotune)
install(DIRECTORY profiles/ DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/turbotune/profiles FILES_MATCHING PATTERN *.json)
install(EXPORT turbotune NAMESPACE turbotune:: FILE turbotune-config.cmake DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/turbotune-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/turbotune-config-version.cmake DESTINATION ${package})
