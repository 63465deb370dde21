# Small functions that keep every CMakeLists.txt a list of names.

# mortise_room(NAME [TORCH] SOURCES ... [USES room ...] [LIBS target ...]): the static library of core/NAME.
# Sources are relative to the folder; includes are written from core/ ("text/tokenizer/bpe.h").
function(mortise_room name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;USES;LIBS" ${ARGN})
  add_library(mortise_${name} STATIC ${ARG_SOURCES})
  target_include_directories(mortise_${name} PUBLIC "${PROJECT_SOURCE_DIR}/core")
  target_link_libraries(mortise_${name} PRIVATE mortise_flags PUBLIC ${ARG_LIBS})
  foreach(room IN LISTS ARG_USES)
    target_link_libraries(mortise_${name} PUBLIC mortise_${room})
  endforeach()
  if(ARG_TORCH)
    target_link_libraries(mortise_${name} PUBLIC mortise_torch)
    target_precompile_headers(mortise_${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/torch_pch.h" "${PROJECT_SOURCE_DIR}/cmake/core_pch.h")
  else()
    target_precompile_headers(mortise_${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/core_pch.h")
  endif()
endfunction()

# mortise_test(NAME SOURCES ... [USES room ...] [LIBS target ...] [TORCH]): one GoogleTest program, one ctest entry.
# It runs in the source root's tests folder, with MORTISE_SOURCE_DIR and MORTISE_BINARY_DIR defined.
function(mortise_test name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;USES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE mortise_flags GTest::gtest GTest::gmock GTest::gtest_main ${ARG_LIBS})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE MORTISE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MORTISE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  foreach(room IN LISTS ARG_USES)
    target_link_libraries(${name} PRIVATE mortise_${room})
  endforeach()
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE mortise_torch)
    target_precompile_headers(${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/torch_pch.h")
  endif()
  target_precompile_headers(${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/test_pch.h")
  # Tests are compiled more often than they run.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1> $<$<CONFIG:RelWithDebInfo>:-O0>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}/tests")
endfunction()
