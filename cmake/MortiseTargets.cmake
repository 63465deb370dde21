# Small functions that keep every CMakeLists.txt a list of names.

# Tests are compiled more often than they run. Inline code that a room has too is the room's in tests that link all of it
# (mortise_room_before_test), so it is optimised.
set(MORTISE_TEST_OPTIMISATION -O0)

# mortise_test_compiler(TARGET [OWN_PCH]): the compiler of tests, and their optimisation. clang's OpenMP would need a runtime of
# its own, so at::parallel_for is serial in the tests' own code. OWN_PCH: the target makes a precompiled header. clang writes
# absolute paths into it, so ccache must not give it to another folder.
function(mortise_test_compiler target)
  target_compile_options(${target} PRIVATE ${MORTISE_TEST_OPTIMISATION})
  if(NOT MORTISE_TEST_COMPILER)
    return()
  endif()
  set(launcher "${PROJECT_SOURCE_DIR}/cmake/other_compiler.sh" "${MORTISE_TEST_COMPILER}")
  if(NOT "OWN_PCH" IN_LIST ARGN)
    list(APPEND launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "${launcher};--" MORTISE_WITHOUT_OPENMP ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Qunused-arguments;-Wno-unknown-warning-option;-fpch-instantiate-templates>
    "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
endfunction()

# mortise_precompile(TARGET room|light|program|test [TORCH]): the precompiled header that such targets share. A target of its own
# makes each one. The compiler accepts it only with the maker's optimisation and position independence, so a target with
# other flags makes its own (target_precompile_headers).
function(mortise_precompile target kind)
  set(headers "${PROJECT_SOURCE_DIR}/cmake/core_pch.h")
  if(kind STREQUAL "test")
    set(headers "${PROJECT_SOURCE_DIR}/cmake/test_pch.h")
  endif()
  set(maker mortise_${kind}_pch)
  if("TORCH" IN_LIST ARGN)
    set(maker mortise_${kind}_torch_pch)
    if(kind STREQUAL "test")
      list(PREPEND headers "${PROJECT_SOURCE_DIR}/cmake/test_torch_pch.h")
    else()
      list(PREPEND headers "${PROJECT_SOURCE_DIR}/cmake/torch_pch.h")
    endif()
  endif()
  if(NOT TARGET ${maker})
    file(WRITE "${PROJECT_BINARY_DIR}/pch/${maker}.cpp" "int main() { return 0; }\n")
    if(kind STREQUAL "test")
      add_executable(${maker} EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/pch/${maker}.cpp")
      target_link_libraries(${maker} PRIVATE GTest::gtest GTest::gmock)
      mortise_test_compiler(${maker} OWN_PCH)
    elseif(kind STREQUAL "program")
      add_executable(${maker} EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/pch/${maker}.cpp")
      if(NOT MORTISE_FUZZ)  # only the fuzz targets are such programs
        mortise_test_compiler(${maker} OWN_PCH)
      endif()
    else()
      add_library(${maker} OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/pch/${maker}.cpp")
    endif()
    if(kind STREQUAL "light")
      target_compile_options(${maker} PRIVATE -O1)
    endif()
    target_link_libraries(${maker} PRIVATE mortise_flags nlohmann_json::nlohmann_json)  # the header that the targets read too
    if("TORCH" IN_LIST ARGN)
      target_link_libraries(${maker} PRIVATE mortise_torch)
    endif()
    target_precompile_headers(${maker} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${maker})
endfunction()

# mortise_light(TARGET [TORCH]): for code that decides what others compute, and computes nothing long itself. A release build
# optimises it with -O1, which takes two thirds of the compiler's time for -O2.
function(mortise_light target)
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
    mortise_precompile(${target} room ${ARGN})
    return()
  endif()
  target_compile_options(${target} PRIVATE -O1)
  mortise_precompile(${target} light ${ARGN})
endfunction()

# mortise_unity(TARGET): with MORTISE_UNITY, the compiler gets up to 32 files of the target as one. Reading the same headers
# again is most of a file's cost. With eight files a whole build took about half the time; an edit of one file compiles the
# others of its unit too.
# Some files stay alone: CMake leaves out those with COMPILE_OPTIONS, and SKIP_UNITY_BUILD_INCLUSION marks those that
# define macros. Code with floating-point clones for several CPUs stays alone too, because inlining may change its bits.
function(mortise_unity target)
  if(MORTISE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
  endif()
endfunction()

# mortise_room(NAME [TORCH [OWN_PCH]] [FAST|LIGHT] SOURCES ... [USES room ...] [LIBS target ...]): the static library of core/NAME.
# OWN_PCH: it has its own compiler flags. FAST: it is optimised under AddressSanitizer too, because many tests spend their time in
# it; there it has no precompiled header. LIGHT: mortise_light says what that is. Sources are relative to the folder; includes
# start at core/ ("text/tokenizer/bpe.h").
function(mortise_room name)
  cmake_parse_arguments(ARG "TORCH;OWN_PCH;FAST;LIGHT" "" "SOURCES;USES;LIBS" ${ARGN})
  add_library(mortise_${name} STATIC ${ARG_SOURCES})
  mortise_unity(mortise_${name})
  target_include_directories(mortise_${name} PUBLIC "${PROJECT_SOURCE_DIR}/core")
  target_link_libraries(mortise_${name} PRIVATE mortise_flags PUBLIC ${ARG_LIBS})
  foreach(room IN LISTS ARG_USES)
    target_link_libraries(mortise_${name} PUBLIC mortise_${room})
  endforeach()
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
    target_link_libraries(mortise_${name} PUBLIC mortise_torch)
  endif()
  if(ARG_OWN_PCH)
    target_precompile_headers(mortise_${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/torch_pch.h" "${PROJECT_SOURCE_DIR}/cmake/core_pch.h")
  elseif(ARG_FAST AND MORTISE_SANITIZE MATCHES "address")
    target_compile_options(mortise_${name} PRIVATE -O1)
  elseif(ARG_LIGHT)
    mortise_light(mortise_${name} ${torch})
  else()
    mortise_precompile(mortise_${name} room ${torch})
  endif()
endfunction()

# mortise_room_before_test(TEST ROOM): the linker keeps the first copy that it reads of an inline function or template. Without
# this, that is often the test's own one, which is not optimised: the room's code would call it, which takes up to twice as
# long and is not the code that ships. Link options stand before the object files.
function(mortise_room_before_test test room)
  target_link_libraries(${test} PRIVATE mortise_${room})
  target_link_options(${test} PRIVATE "LINKER:SHELL:--whole-archive $<TARGET_FILE:mortise_${room}> --no-whole-archive")
endfunction()

# What tests/support/this_build.h declares: one small file for all test programs.
function(mortise_this_build)
  if(TARGET mortise_this_build)
    return()
  endif()
  add_library(mortise_this_build STATIC "${PROJECT_SOURCE_DIR}/tests/support/this_build.cpp")
  target_include_directories(mortise_this_build PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(mortise_this_build PRIVATE SOURCE_FOLDER="${PROJECT_SOURCE_DIR}" BUILD_FOLDER="${PROJECT_BINARY_DIR}")
  target_link_libraries(mortise_this_build PRIVATE mortise_flags)
endfunction()

# The objects of a test program, compiled once for two builds. MORTISE_TEST_OBJECTS names a configured release build, and its
# test code is linked with the rooms of this one. So a build for AddressSanitizer instruments all code that ships, and
# compiles no test code again. A test whose sources hold code that ships says SANITIZED: it is compiled here too.
#   mortise_share_objects(NAME)        notes where NAME's objects are
#   mortise_shared_objects(NAME OUT)   the objects of the other build's NAME, which `ninja` makes first if they are not current
function(mortise_share_objects name)
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/test_objects/${name}.txt" CONTENT "$<JOIN:$<TARGET_OBJECTS:${name}>,\n>\n")
  add_custom_target(${name}_objects DEPENDS "$<TARGET_OBJECTS:${name}>")
endfunction()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS other_build=1)  # one ninja at a time in its folder
function(mortise_shared_objects name out)
  set(list "${MORTISE_TEST_OBJECTS}/test_objects/${name}.txt")
  if(NOT EXISTS "${list}")
    message(FATAL_ERROR "${list} is missing. Configure the build that compiles the tests first (cmake --preset release), or "
      "compile them here too (-DMORTISE_TEST_OBJECTS=OFF).")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  file(STRINGS "${list}" objects)
  add_custom_target(${name}_objects COMMAND "${CMAKE_MAKE_PROGRAM}" -C "${MORTISE_TEST_OBJECTS}" ${name}_objects
    BYPRODUCTS ${objects} JOB_POOL other_build COMMENT "Objects of ${name} from ${MORTISE_TEST_OBJECTS}" VERBATIM)
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${out} "${objects}" PARENT_SCOPE)
endfunction()

# mortise_test(NAME SOURCES ... [USES room ...] [LIBS target ...] [TORCH] [EACH suite|case] [PROCESSORS n] [THREADS] [SANITIZED]): one
# GoogleTest program. It runs in the source root's tests folder, with MORTISE_SOURCE_DIR and MORTISE_BINARY_DIR (tests/support/this_build.h).
#   EACH        one ctest entry NAME.SUITE or NAME.SUITE.CASE for each, found by asking the program. Without it the program
#               is one entry NAME. Slow programs need it: their entries run side by side, each within its own limit.
#   PROCESSORS  how many processors one entry keeps busy (default 1).
#   THREADS     the program also runs under ThreadSanitizer: its entries get the label "threads".
#   SANITIZED   its sources hold code that ships, so every sanitizer's build compiles them.
function(mortise_test name)
  cmake_parse_arguments(ARG "TORCH;THREADS;SANITIZED" "EACH;PROCESSORS" "SOURCES;USES;LIBS" ${ARGN})
  set(shares_objects OFF)
  if(MORTISE_TEST_OBJECTS AND NOT ARG_SANITIZED)
    set(shares_objects ON)
    mortise_shared_objects(${name} objects)
    add_executable(${name} ${objects})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    add_dependencies(${name} ${name}_objects)
  else()
    add_executable(${name} ${ARG_SOURCES})
    mortise_unity(${name})
    if(NOT TARGET tests_compiled_here)
      add_custom_target(tests_compiled_here)  # those that need no other build, so that ./dev test can make them ahead
    endif()
    add_dependencies(tests_compiled_here ${name})
  endif()
  target_link_libraries(${name} PRIVATE mortise_flags GTest::gtest GTest::gmock GTest::gtest_main ${ARG_LIBS})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  mortise_this_build()
  target_link_libraries(${name} PRIVATE mortise_this_build)
  foreach(room IN LISTS ARG_USES)
    target_link_libraries(${name} PRIVATE mortise_${room})
  endforeach()
  if(shares_objects)
    foreach(room IN LISTS ARG_USES)
      mortise_room_before_test(${name} ${room})  # inline code that a room has too is the instrumented one
    endforeach()
  elseif(ARG_USES)
    mortise_room_before_test(${name} parse)  # the JSON reader: most of what tests without libtorch compute
  endif()
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
    target_link_libraries(${name} PRIVATE mortise_torch mortise_libtorch_end)
  endif()
  if(NOT shares_objects)
    mortise_precompile(${name} test ${torch})
    mortise_test_compiler(${name})
    if(NOT MORTISE_SANITIZE AND NOT ARG_TORCH AND NOT ARG_SANITIZED)
      mortise_share_objects(${name})
    endif()
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  mortise_test_entries(${name} "${ARG_EACH}" "${ARG_PROCESSORS}" "${ARG_THREADS}")
endfunction()

# mortise_test_costs(): tests/seconds.txt also orders those entries of this folder that are no GoogleTest programs.
function(mortise_test_costs)
  set(file "${PROJECT_SOURCE_DIR}/tests/seconds.txt")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(STRINGS "${file}" lines REGEX "^[^#]")
  get_property(names DIRECTORY PROPERTY TESTS)
  foreach(line IN LISTS lines)
    if(line MATCHES "^([^ ]+) +([0-9]+)" AND CMAKE_MATCH_1 IN_LIST names)
      set_tests_properties(${CMAKE_MATCH_1} PROPERTIES COST ${CMAKE_MATCH_2})
    endif()
  endforeach()
endfunction()

# ctest makes the entries when it starts: only then can the program say which cases it has.
function(mortise_test_entries name each processors threads)
  set(labels "")
  if(threads)
    set(labels threads)
    if(NOT TARGET thread_tests)
      add_custom_target(thread_tests)  # what ./dev test builds for ThreadSanitizer
    endif()
    add_dependencies(thread_tests ${name})
  endif()
  set(slowdown 1)
  if(MORTISE_SANITIZE)
    set(slowdown 4)
  endif()
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${name}_entries.cmake")
  file(WRITE "${file}" "set(test_name ${name})
set(test_program \"${CMAKE_BINARY_DIR}/tests/${name}\")
set(test_folder \"${PROJECT_SOURCE_DIR}/tests\")
set(test_each \"${each}\")
set(test_processors \"${processors}\")
set(test_labels \"${labels}\")
set(test_slowdown ${slowdown})
include(\"${PROJECT_SOURCE_DIR}/cmake/test_entries.cmake\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${file}")
endfunction()
