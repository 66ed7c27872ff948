# Finds the CUDA toolkit, checks whether its compiler works here, and defines remat_cuda_objects, which compiles the .cu
# files of ops/.
#
# The toolkit is searched in CUDAToolkit_ROOT, around the nvcc on the PATH, in CUDA_HOME, in /usr/local/cuda*, and among
# NVIDIA's Python packages that python3 finds (nvidia-cuda-nvcc, nvidia-cuda-runtime, nvidia-cublas, ...). Headers alone
# are enough for NCCL and for the tests of the device's host side; the device also needs a working compiler.
#
# nvcc is called by name. With CMake's own language CUDA, a C program that links libremat.a would have to enable CUDA.
set(REMAT_CUDA AUTO CACHE STRING "the device cuda, for NVIDIA GPUs: AUTO, ON or OFF")
if(REMAT_SANITIZE AND NOT REMAT_CUDA STREQUAL "ON")
  set(REMAT_CUDA OFF) # with sanitizers, the tests run the kernels on the CPU, and the device on a fake of CUDA
endif()

# ---- Folders: CUDA_FOLDERS, most likely first ------------------------------------------------------------------------------
set(CUDA_FOLDERS ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT})
find_program(CUDA_NVCC nvcc HINTS ${CUDA_FOLDERS} PATH_SUFFIXES bin NO_DEFAULT_PATH)
find_program(CUDA_NVCC nvcc)
foreach(home $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
  if(IS_DIRECTORY ${home})
    list(APPEND CUDA_FOLDERS ${home})
  endif()
endforeach()
file(GLOB numbered /usr/local/cuda-1[2-9]*)
list(SORT numbered COMPARE NATURAL ORDER DESCENDING)
find_program(PYTHON3 python3)
# nvidia/cu13 is a whole toolkit; earlier, each package had its own folder: nvidia/cuda_runtime, nvidia/cublas, ...
if(PYTHON3)
  execute_process(COMMAND ${PYTHON3} -c "import glob, nvidia; print(';'.join(d for p in nvidia.__path__ for d in sorted(glob.glob(p + '/*'), reverse=True)), end='')"
                  OUTPUT_VARIABLE packages ERROR_QUIET)
endif()
list(APPEND CUDA_FOLDERS ${numbered} ${packages})
find_program(CUDA_NVCC nvcc HINTS ${CUDA_FOLDERS} PATH_SUFFIXES bin)
if(CUDA_NVCC) # a toolkit's own files come before others that happen to be installed
  file(REAL_PATH ${CUDA_NVCC} nvcc)
  cmake_path(GET nvcc PARENT_PATH bin)
  cmake_path(GET bin PARENT_PATH home)
  list(PREPEND CUDA_FOLDERS ${CUDAToolkit_ROOT} ${home})
  list(REMOVE_DUPLICATES CUDA_FOLDERS)
endif()

find_path(CUDART_INCLUDE_DIR cuda_runtime.h HINTS ${CUDA_FOLDERS} PATH_SUFFIXES include)
find_path(CUDACRT_INCLUDE_DIR crt/host_defines.h HINTS ${CUDA_FOLDERS} PATH_SUFFIXES include)
find_path(CUBLAS_INCLUDE_DIR cublas_v2.h HINTS ${CUDA_FOLDERS} PATH_SUFFIXES include)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDA_FOLDERS} PATH_SUFFIXES include)
find_library(CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 HINTS ${CUDA_FOLDERS} PATH_SUFFIXES lib64 lib)
find_library(CUDART_STATIC_LIBRARY libcudart_static.a HINTS ${CUDA_FOLDERS} PATH_SUFFIXES lib64 lib)
find_library(CUBLAS_LIBRARY NAMES cublas libcublas.so.13 libcublas.so.12 HINTS ${CUDA_FOLDERS} PATH_SUFFIXES lib64 lib)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDA_FOLDERS} PATH_SUFFIXES lib64 lib)
mark_as_advanced(CUDA_NVCC PYTHON3 CUDART_INCLUDE_DIR CUDACRT_INCLUDE_DIR CUBLAS_INCLUDE_DIR CUDART_LIBRARY
                 CUDART_STATIC_LIBRARY CUBLAS_LIBRARY CUDNN_INCLUDE_DIR CUDNN_LIBRARY)
set(CUDA_INCLUDE_DIRS ${CUDART_INCLUDE_DIR} ${CUDACRT_INCLUDE_DIR} ${CUBLAS_INCLUDE_DIR})
if(CUDNN_INCLUDE_DIR) # without it, no recurrent kernels of cuDNN's
  list(APPEND CUDA_INCLUDE_DIRS ${CUDNN_INCLUDE_DIR})
endif()
list(REMOVE_DUPLICATES CUDA_INCLUDE_DIRS)
# Further folders for libraries that are opened at run time, separated by colons.
set(CUDA_LIBRARY_FOLDERS "")
foreach(library ${CUDART_LIBRARY} ${CUBLAS_LIBRARY} ${CUDNN_LIBRARY})
  if(library)
    cmake_path(GET library PARENT_PATH folder)
    list(APPEND CUDA_LIBRARY_FOLDERS ${folder})
  endif()
endforeach()
list(REMOVE_DUPLICATES CUDA_LIBRARY_FOLDERS)
list(JOIN CUDA_LIBRARY_FOLDERS ":" CUDA_LIBRARY_FOLDERS)

# ---- Whether kernels can be compiled -----------------------------------------------------------------------------------
# CUDA_MISSING is what is not there, or empty.
set(CUDA_MISSING "")
foreach(need CUDA_NVCC CUDART_INCLUDE_DIR CUDACRT_INCLUDE_DIR CUBLAS_INCLUDE_DIR CUDART_STATIC_LIBRARY)
  if(NOT ${need})
    set(word_CUDA_NVCC "nvcc")
    set(word_CUDART_INCLUDE_DIR "cuda_runtime.h")
    set(word_CUDACRT_INCLUDE_DIR "crt/host_defines.h")
    set(word_CUBLAS_INCLUDE_DIR "cublas_v2.h")
    set(word_CUDART_STATIC_LIBRARY "libcudart_static.a")
    list(APPEND CUDA_MISSING ${word_${need}})
  endif()
endforeach()
list(JOIN CUDA_MISSING ", " CUDA_MISSING)

# The GPU architectures to compile for, in CMake's notation: 90 (and PTX for newer GPUs), 90-real, 90-virtual, or
# native. The default is CUDAARCHS, the environment's variable of CMake, or those below that this nvcc supports, with PTX of
# the newest only. Kernels for 8.0 also run on 8.6 and 8.9.
if(NOT REMAT_CUDA STREQUAL "OFF" AND NOT CUDA_MISSING AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  execute_process(COMMAND ${CUDA_NVCC} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(architectures $ENV{CUDAARCHS})
  if(NOT architectures)
    foreach(architecture 75 80 90 100)
      if(known MATCHES "compute_${architecture}\n")
        list(TRANSFORM architectures REPLACE "^[0-9]+$" "\\0-real")
        list(APPEND architectures ${architecture})
      endif()
    endforeach()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "GPU architectures for the kernels")
endif()

set(CUDA_FLAGS -std=c++17 -O3 -DREMAT_HAVE_CUDA "-I${CMAKE_SOURCE_DIR}")
foreach(folder ${CUDA_INCLUDE_DIRS})
  list(APPEND CUDA_FLAGS -isystem ${folder})
endforeach()
# Warnings are errors, both nvcc's and the host compiler's. A kernel that recomputes another kernel's result must round
# in the same way: products and sums are not fused unless the source says so, as in the CPU's cells.
list(APPEND CUDA_FLAGS -Werror=all-warnings -fmad=false -Xfatbin=-compress-all
     "-Xcompiler=-Wall,-Wextra,-Werror,-fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off")
separate_arguments(more UNIX_COMMAND "${CMAKE_CUDA_FLAGS}")
list(APPEND CUDA_FLAGS ${more})
if(CMAKE_CUDA_HOST_COMPILER)
  list(APPEND CUDA_FLAGS -ccbin ${CMAKE_CUDA_HOST_COMPILER})
endif()
set(CUDA_ARCHITECTURE_FLAGS "")
foreach(architecture ${CMAKE_CUDA_ARCHITECTURES})
  string(REGEX REPLACE "-.*" "" number ${architecture})
  if(architecture STREQUAL "native")
    list(APPEND CUDA_ARCHITECTURE_FLAGS -arch=native)
  elseif(architecture MATCHES "-real$")
    list(APPEND CUDA_ARCHITECTURE_FLAGS -gencode arch=compute_${number},code=sm_${number})
  elseif(architecture MATCHES "-virtual$")
    list(APPEND CUDA_ARCHITECTURE_FLAGS -gencode arch=compute_${number},code=compute_${number})
  else()
    list(APPEND CUDA_ARCHITECTURE_FLAGS -gencode "arch=compute_${number},code=[compute_${number},sm_${number}]")
  endif()
endforeach()

# nvcc may exist but not work, for example with an unsupported host compiler. It is tried once for the same flags.
if(NOT REMAT_CUDA STREQUAL "OFF" AND NOT CUDA_MISSING)
  string(MD5 trial "${CUDA_NVCC} ${CUDA_FLAGS} ${CUDA_ARCHITECTURE_FLAGS}")
  if(NOT trial STREQUAL REMAT_CUDA_TRIED)
    file(WRITE ${CMAKE_BINARY_DIR}/cuda/trial.cu [[
#include <cublas_v2.h>
#include <cublasLt.h>
#include <cuda_runtime.h>
#if CUDART_VERSION < 12000
#error Remat needs CUDA 12 or newer
#endif
__global__ void trial(float *x) { *x = 1; }
void go(float *x) { trial<<<1, 1>>>(x); }
]])
    execute_process(COMMAND ${CUDA_NVCC} ${CUDA_FLAGS} ${CUDA_ARCHITECTURE_FLAGS} -c trial.cu -o trial.o
                    WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/cuda RESULT_VARIABLE failed OUTPUT_VARIABLE words
                    ERROR_VARIABLE words)
    if(failed)
      message(STATUS "Remat: ${CUDA_NVCC} does not work here:\n${words}")
      set(CUDA_MISSING "an nvcc that works")
      unset(REMAT_CUDA_TRIED CACHE)
    else()
      set(REMAT_CUDA_TRIED ${trial} CACHE INTERNAL "flags with which nvcc works")
    endif()
  endif()
endif()

set(CUDA_FOUND TRUE)
set(CUDA_GIVES "training on NVIDIA GPUs (--device=cuda)")
if(CUDA_MISSING)
  set(CUDA_FOUND FALSE)
  string(APPEND CUDA_GIVES "; it lacks ${CUDA_MISSING}")
elseif(NOT REMAT_CUDA STREQUAL "OFF")
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
  string(APPEND CUDA_GIVES ", for ${architectures}, by ${CUDA_NVCC}")
endif()
remat_part(CUDA CUDA_FOUND "${CUDA_GIVES}")

# ---- remat_cuda_objects(OUT): the object files of the .cu files in ops/ ------------------------------------------------------------
function(remat_cuda_objects out)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ops/*.cu)
  set(objects "")
  foreach(source ${sources})
    cmake_path(GET source FILENAME name)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling ${name} for GPUs"
                       COMMAND ${CUDA_NVCC} ${CUDA_FLAGS} ${CUDA_ARCHITECTURE_FLAGS} -MMD -MF ${object}.d -MT ${object}
                               -c ${source} -o ${object} VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
