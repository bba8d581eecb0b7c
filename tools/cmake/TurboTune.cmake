# Helpers of the build. A room is a library whose include path holds its own headers and those of
# the rooms that it names, and nothing else: an include of a higher room does not build.

add_library(turbotune_warnings INTERFACE)
target_compile_options(turbotune_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(turbotune_warnings INTERFACE -Wno-restrict)   # false alarms: gcc bug 105651
endif()
if(TURBOTUNE_WARNINGS_AS_ERRORS)
    target_compile_options(turbotune_warnings INTERFACE -Werror)
endif()

function(turbotune_header_only name include_dir)
    add_library(turbotune_${name} INTERFACE)
    target_include_directories(turbotune_${name} SYSTEM INTERFACE ${include_dir})
    target_compile_definitions(turbotune_${name} INTERFACE ${ARGN})
endfunction()

# turbotune_fmt: a static library made from fmt's headers, else header only.
function(turbotune_fmt_library include_dir)
    set(here ${PROJECT_SOURCE_DIR}/tools/cmake)
    try_compile(TURBOTUNE_FMT_COMPILED ${PROJECT_BINARY_DIR}/fmt_probe SOURCES ${here}/fmt_library.cpp ${here}/fmt_probe.cpp
                CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${include_dir} CXX_STANDARD 20)
    if(TURBOTUNE_FMT_COMPILED)
        add_library(turbotune_fmt STATIC ${here}/fmt_library.cpp)
        target_include_directories(turbotune_fmt SYSTEM PUBLIC ${include_dir})
    else()
        turbotune_header_only(fmt ${include_dir} FMT_HEADER_ONLY)
    endif()
endfunction()

# Targets whose files are compiled several at once where TURBOTUNE_UNITS is on. Most of the time of one goes to headers.
function(turbotune_units)
    if(TURBOTUNE_UNITS)
        set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
        if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")   # takes an included .cpp for a header
            foreach(target IN LISTS ARGN)
                target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
            endforeach()
        endif()
    endif()
endfunction()

# Sources of the calling folder with names of their own, in unnamed namespaces, that others of their target have, too:
# builds of several files at once (turbotune_units, and CMAKE_UNITY_BUILD of the sanitizers' presets) take these alone.
function(turbotune_apart)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# turbotune_room(NAME INCLUDE_DIR DEPENDS lower... LINK others...)
# Sources: every .cpp below the current folder/NAME (or the folder itself when it is called NAME).
# Headers: INCLUDE_DIR/turbotune/NAME, where INCLUDE_DIR holds this room alone.
function(turbotune_room name include_dir)
    cmake_parse_arguments(ROOM "" "SOURCE_DIR" "DEPENDS;LINK" ${ARGN})
    if(NOT ROOM_SOURCE_DIR)
        set(ROOM_SOURCE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/${name})
    endif()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${ROOM_SOURCE_DIR}/*.cpp)
    if(NOT sources)   # a room without code yet
        set(sources ${PROJECT_BINARY_DIR}/rooms/${name}_empty.cpp)
        file(WRITE ${sources} "")
    endif()
    add_library(turbotune_${name} STATIC ${sources})
    target_include_directories(turbotune_${name} PUBLIC ${include_dir} PRIVATE ${ROOM_SOURCE_DIR})
    foreach(lower IN LISTS ROOM_DEPENDS)
        target_link_libraries(turbotune_${name} PUBLIC turbotune_${lower})
    endforeach()
    target_link_libraries(turbotune_${name} PRIVATE turbotune_warnings turbotune_fmt)
    target_link_libraries(turbotune_${name} PUBLIC nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS} ${ROOM_LINK})
    turbotune_units(turbotune_${name})
    set_property(GLOBAL APPEND PROPERTY TURBOTUNE_ROOMS ${name})
endfunction()
