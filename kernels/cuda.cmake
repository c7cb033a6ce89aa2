# The CUDA toolchain: nvcc called by custom commands, not CMake's CUDA language, whose compiler test
# fits neither the layout of the Python wheels nor (CMake 3.25) CUDA 13. Defines DIFFSERVE_NVCC, the
# targets diffserve_cudart and diffserve_cublas_header, and diffserve_cuda_sources().
#
# Machine code: sm_80 (runs on every 8.x) and sm_90a (Hopper) if DIFFSERVE_CUDA_ARCHITECTURES does
# not say otherwise. Everything newer takes the compute_90 PTX of the portable kernels, with bulk
# copies and dependent launches, which the driver compiles on first use (kept in its own cache), or
# machine code made of it here. A file *_sm90a_cuda.cu is compiled for sm_90a alone.

set(DIFFSERVE_CUDA_ARCHITECTURES "80;90a" CACHE STRING
  "GPUs to make machine code for: 90a; 80, 100, 120 and so on (the portable kernels)")
set(DIFFSERVE_CUDA_FLAGS -lineinfo CACHE STRING "More arguments for nvcc")
set(DIFFSERVE_NVCC "" CACHE FILEPATH "nvcc >= 13.0; empty: what deploy/install_cuda.sh --find says")
if(NOT DIFFSERVE_NVCC)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/deploy/install_cuda.sh --find
                  OUTPUT_VARIABLE found_nvcc OUTPUT_STRIP_TRAILING_WHITESPACE
                  RESULT_VARIABLE find_result)
  if(find_result)
    message(FATAL_ERROR
      "DIFFSERVE_CUDA needs a CUDA toolkit >= 13.0: "
      "run deploy/install_cuda.sh, or set DIFFSERVE_NVCC")
  endif()
  set(DIFFSERVE_NVCC ${found_nvcc} CACHE FILEPATH "nvcc >= 13.0" FORCE)
endif()
if(DIFFSERVE_SANITIZE)
  message(FATAL_ERROR
    "DIFFSERVE_CUDA excludes DIFFSERVE_SANITIZE: "
    "the kernels run under sanitizers in the tests' CPU shim")
endif()
if(CMAKE_CROSSCOMPILING)
  set(DIFFSERVE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
else()
  find_program(DIFFSERVE_CUDA_HOST_COMPILER NAMES g++-12 g++ REQUIRED)
endif()

# The wheels keep everything in one folder; toolkits have targets/x86_64-linux or lib64; a
# distribution's has neither.
get_filename_component(nvcc_path ${DIFFSERVE_NVCC} REALPATH)
get_filename_component(cuda_root ${nvcc_path} DIRECTORY)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
file(GLOB wheel_roots ${CMAKE_SOURCE_DIR}/.cuda/lib/python3*/site-packages/nvidia/cu13)
# Where the machine's own Python keeps NVIDIA's wheels, if it has them (PyTorch brings cuBLAS).
execute_process(COMMAND python3 -c
  "import nvidia; print(*(path + '/cu13' for path in nvidia.__path__), sep=';')"
                OUTPUT_VARIABLE python_roots OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
list(APPEND wheel_roots ${python_roots})
find_path(DIFFSERVE_CUDA_INCLUDE cuda_runtime.h HINTS ${cuda_root} PATH_SUFFIXES include
  targets/x86_64-linux/include
          NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
# The headers are the same for each host; its part of the runtime is not.
set(host_root ${cuda_root})
if(CMAKE_CROSSCOMPILING)
  set(host_root ${CMAKE_SOURCE_DIR}/.cuda/arm64/nvidia/cu13)
endif()
find_library(DIFFSERVE_CUDART_STATIC cudart_static HINTS ${host_root} PATH_SUFFIXES lib lib64
  targets/x86_64-linux/lib
             NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
find_path(DIFFSERVE_CUBLAS_INCLUDE cublasLt.h HINTS ${cuda_root} ${wheel_roots} PATH_SUFFIXES
  include targets/x86_64-linux/include
          NO_CMAKE_FIND_ROOT_PATH REQUIRED)

# The runtime is linked statically and looks for the driver (libcuda.so.1) when it is first called:
# the binary starts without one.
add_library(diffserve_cudart INTERFACE)
target_include_directories(diffserve_cudart SYSTEM INTERFACE ${DIFFSERVE_CUDA_INCLUDE})
target_link_libraries(diffserve_cudart INTERFACE ${DIFFSERVE_CUDART_STATIC} ${CMAKE_DL_LIBS} rt
  Threads::Threads)
# Headers alone: kernels/ops/matrix_library_cuda.cc opens the library when a device is first used,
# in this folder if the loader's paths do not have it. A package names no folder of its build.
add_library(diffserve_cublas_header INTERFACE)
target_include_directories(diffserve_cublas_header SYSTEM INTERFACE ${DIFFSERVE_CUBLAS_INCLUDE})
get_filename_component(cublas_root ${DIFFSERVE_CUBLAS_INCLUDE} DIRECTORY)
if(NOT CMAKE_CROSSCOMPILING)
  find_path(DIFFSERVE_CUBLAS_FOLDER NAMES libcublasLt.so.13 HINTS ${cublas_root} ${wheel_roots}
    PATH_SUFFIXES lib lib64)
endif()
if(NOT DIFFSERVE_CUBLAS_FOLDER)
  set(DIFFSERVE_CUBLAS_FOLDER /usr/local/cuda/lib64)
endif()
target_compile_definitions(diffserve_cublas_header INTERFACE
  DIFFSERVE_CUBLAS_FOLDER="${DIFFSERVE_CUBLAS_FOLDER}")

string(TOUPPER "${CMAKE_BUILD_TYPE}" cuda_build_type)
separate_arguments(cuda_config_flags UNIX_COMMAND "${CMAKE_CXX_FLAGS_${cuda_build_type}}")
list(FILTER cuda_config_flags INCLUDE REGEX "^-(O|D)")
set(DIFFSERVE_NVCC_FLAGS
    -ccbin ${DIFFSERVE_CUDA_HOST_COMPILER} -std=c++20 ${cuda_config_flags}
      --expt-relaxed-constexpr
    -Werror all-warnings -Xcompiler -fPIC,-Wall,-Wextra,-Werror,-fstack-protector-strong -Xptxas -v
      -Xcompiler -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/= -I${CMAKE_SOURCE_DIR}
      ${DIFFSERVE_CUDA_FLAGS})
if(CMAKE_CROSSCOMPILING)  # with diffserve_flags' for this processor
  list(APPEND DIFFSERVE_NVCC_FLAGS
    -Xcompiler --sysroot=${CMAKE_SYSROOT},-ffp-contract=off,-fsigned-char)
endif()

# diffserve_cuda_targets(VARIABLE STEM): nvcc's arguments for the machine code of a file.
function(diffserve_cuda_targets variable stem)
  set(targets "")
  set(portable ${DIFFSERVE_CUDA_ARCHITECTURES})
  list(FILTER portable EXCLUDE REGEX "a$")
  if(portable AND NOT stem MATCHES "_sm90a_cuda$")
    set(older ${portable})
    set(newer ${portable})
    list(FILTER older INCLUDE REGEX "^8.$")
    list(FILTER newer EXCLUDE REGEX "^8.$")
    list(TRANSFORM older PREPEND sm_)
    list(TRANSFORM newer PREPEND sm_)
    list(APPEND newer compute_90)
    list(JOIN older "," older_codes)
    list(JOIN newer "," newer_codes)
    if(older)
      list(APPEND targets -gencode arch=compute_80,code=[${older_codes}])
    endif()
    list(APPEND targets -gencode arch=compute_90,code=[${newer_codes}])
  endif()
  if("90a" IN_LIST DIFFSERVE_CUDA_ARCHITECTURES OR stem MATCHES "_sm90a_cuda$")
    list(APPEND targets -gencode arch=compute_90a,code=sm_90a)
  endif()
  set(${variable} ${targets} PARENT_SCOPE)
endfunction()

# diffserve_cuda_sources(TARGET FOLDER...): the folders' *.cu become part of TARGET. Beside each
# object lies the compiler's report on its kernels; cuda_sources.txt lists them (source, object,
# report) for the gate.
function(diffserve_cuda_sources target)
  set(listing "")
  set(reports "")
  foreach(folder ${ARGN})
    file(GLOB cu_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cu)
    foreach(source ${cu_sources})
      get_filename_component(stem ${source} NAME_WE)
      set(object ${CMAKE_CURRENT_BINARY_DIR}/${stem}.cu.o)
      set(report ${CMAKE_CURRENT_BINARY_DIR}/${stem}.ptxas)
      diffserve_cuda_targets(targets ${stem})
      add_custom_command(
        OUTPUT ${object} ${report}
        COMMAND ${CMAKE_SOURCE_DIR}/kernels/compile_cu.sh ${report} ${DIFFSERVE_NVCC}
          ${DIFFSERVE_NVCC_FLAGS} ${targets}
                -MD -MF ${object}.d -c ${source} -o ${object}
        DEPENDS ${source} ${CMAKE_SOURCE_DIR}/kernels/compile_cu.sh ${DIFFSERVE_NVCC}
        DEPFILE ${object}.d
        COMMENT "CUDA ${stem}"
        VERBATIM)
      target_sources(${target} PRIVATE ${object})
      list(APPEND reports ${report})
      string(APPEND listing "${source}\t${object}\t${report}\n")
    endforeach()
  endforeach()
  add_custom_target(cuda_kernels DEPENDS ${reports})
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/cuda_sources.txt CONTENT "${listing}" @ONLY)
  list(JOIN DIFFSERVE_CUDA_ARCHITECTURES " " architectures)
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/base/cuda/device_cuda.cc PROPERTIES
    COMPILE_DEFINITIONS "DIFFSERVE_CUDA_ARCHITECTURES=\"${architectures}\"")
  target_link_libraries(${target} PUBLIC diffserve_cudart PRIVATE diffserve_cublas_header)
endfunction()
