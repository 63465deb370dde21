# Every outside library, found once. One page each in third_party_notes/.
# libtorch comes from the pinned wheel in MORTISE_DEPS_DIR (./dev deps); Debian's own libtorch is never looked at.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS program_options)
find_package(tomlplusplus REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(seccomp REQUIRED IMPORTED_TARGET libseccomp)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(gmp REQUIRED IMPORTED_TARGET gmp)
pkg_check_modules(mpfr REQUIRED IMPORTED_TARGET mpfr)
pkg_check_modules(curl REQUIRED IMPORTED_TARGET libcurl)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
if(MORTISE_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()

# PCRE2 is linked statically, with hidden symbols: the program and the packs need no shared library of it. Only
# core/parse uses it.
find_library(MORTISE_PCRE2_STATIC libpcre2-8.a REQUIRED)
add_library(mortise_pcre2_static STATIC IMPORTED GLOBAL)
set_target_properties(mortise_pcre2_static PROPERTIES IMPORTED_LOCATION "${MORTISE_PCRE2_STATIC}"
  INTERFACE_COMPILE_DEFINITIONS PCRE2_STATIC)

if(MORTISE_JSON_COPY)
  include(MortiseJsonHeader)
endif()

# Arrow's C++ libraries, from the pinned wheel (./dev deps --arrow). Without them there is no libmortise_arrow.so.
set(arrow_root "${MORTISE_DEPS_DIR}/pyarrow-26.0.1")
if(EXISTS "${arrow_root}/lib/libparquet.so.2600")
  add_library(mortise_pyarrow INTERFACE)
  target_include_directories(mortise_pyarrow SYSTEM INTERFACE "${arrow_root}/include")
  target_link_libraries(mortise_pyarrow INTERFACE "${arrow_root}/lib/libparquet.so.2600" "${arrow_root}/lib/libarrow.so.2600")
  target_link_options(mortise_pyarrow INTERFACE "LINKER:-rpath,${arrow_root}/lib")
endif()

# Boost.DLL on std::filesystem: defined on the target, since mixing both is an ODR fault.
add_library(mortise_boost_dll INTERFACE)
target_compile_definitions(mortise_boost_dll INTERFACE BOOST_DLL_USE_STD_FS)
target_link_libraries(mortise_boost_dll INTERFACE Boost::headers ${CMAKE_DL_LIBS})

if(MORTISE_TORCH)
  set(torch_root "${MORTISE_DEPS_DIR}/torch-2.11.0")
  if(NOT EXISTS "${torch_root}/torch/lib/libtorch_cpu.so")
    message(FATAL_ERROR "libtorch 2.11.0 is not in ${torch_root}. Run: ./dev deps")
  endif()
  set(MORTISE_TORCH_DIR "${torch_root}/torch")  # for torch-locked packs: mortise_add_pack(... TORCH)
  add_library(mortise_torch INTERFACE)
  add_library(mortise_torch_headers INTERFACE)
  target_link_libraries(mortise_torch INTERFACE mortise_torch_headers)
  # The wheel carries headers of another fmt, whose library it does not have: Debian's are found first.
  find_path(fmt_headers fmt/core.h REQUIRED)
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/fmt_headers")
  file(CREATE_LINK "${fmt_headers}/fmt" "${PROJECT_BINARY_DIR}/fmt_headers/fmt" SYMBOLIC)
  target_include_directories(mortise_torch_headers SYSTEM INTERFACE "${PROJECT_BINARY_DIR}/fmt_headers")
  target_include_directories(mortise_torch_headers SYSTEM INTERFACE "${torch_root}/torch/include" "${torch_root}/torch/include/torch/csrc/api/include")
  # AT_PER_OPERATOR_HEADERS: an include of all of ATen costs seconds per file.
  target_compile_definitions(mortise_torch INTERFACE AT_PER_OPERATOR_HEADERS)
  # at::parallel_for is serial in code compiled without OpenMP; the runtime is the wheel's own, never the system's.
  target_compile_options(mortise_torch INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:MORTISE_WITHOUT_OPENMP>>>:-fopenmp>)
  target_link_libraries(mortise_torch INTERFACE "${torch_root}/torch/lib/libgomp.so.1")
  target_link_libraries(mortise_torch INTERFACE "${torch_root}/torch/lib/libtorch_cpu.so" "${torch_root}/torch/lib/libc10.so" Threads::Threads)
  # Headers alone: the code is in libtorch_cpu.so, and linking Debian's libgloo as well would mix two versions.
  find_path(MORTISE_GLOO_HEADERS gloo/context.h REQUIRED)
  # Sets how OpenMP's threads wait and how MKL computes. libtorch_environment.cpp says why this is a library, and why it comes
  # after those two. Nothing calls it, so the linker gets an option to keep it.
  set(CMAKE_LINK_LIBRARY_USING_kept_SUPPORTED TRUE)
  set(CMAKE_LINK_LIBRARY_USING_kept "LINKER:--push-state,--no-as-needed" "<LINK_ITEM>" "LINKER:--pop-state")
  add_library(mortise_libtorch_environment SHARED "${PROJECT_SOURCE_DIR}/core/model/tensor/libtorch_environment.cpp")
  set_target_properties(mortise_libtorch_environment PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/mortise")
  install(TARGETS mortise_libtorch_environment LIBRARY DESTINATION lib/mortise COMPONENT programs)
  target_link_libraries(mortise_torch INTERFACE "$<LINK_LIBRARY:kept,mortise_libtorch_environment>")
  # Programs that link it end before libtorch's destructors (libtorch_end.cpp), but under a sanitizer the leak checker runs then.
  add_library(mortise_libtorch_end OBJECT "${PROJECT_SOURCE_DIR}/core/model/tensor/libtorch_end.cpp")
  target_link_libraries(mortise_libtorch_end PRIVATE mortise_flags)
  target_compile_definitions(mortise_libtorch_end PRIVATE MORTISE_SANITIZED=$<BOOL:${MORTISE_SANITIZE}>)
  target_link_options(mortise_torch INTERFACE "LINKER:-rpath,${torch_root}/torch/lib" "LINKER:-rpath-link,${torch_root}/nvidia/cu13/lib"
    "LINKER:--disable-new-dtags,-rpath,${torch_root}/nvidia/cu13/lib")
endif()
