# The library. Inside this build everything links the target `remat`, an archive that gives tests and the program access
# to rm_*. The installed libraries export only remat_*: libremat.a, whose object files are combined into one, and
# libremat.so. They are found as Remat::remat (CMake) or `remat` (pkg-config): see install.cmake. Neither adds an
# allocator or a BLAS to the program that links it: jemalloc is the program's choice, and OpenBLAS is opened at run time
# (ops/math/openblas.c).
set(remat_objects $<TARGET_OBJECTS:remat_engine> $<TARGET_OBJECTS:remat_memory> $<TARGET_OBJECTS:remat_ops>
    $<TARGET_OBJECTS:remat_ranks> $<TARGET_OBJECTS:remat_weights>)
foreach(isa ${remat_isas})
  list(APPEND remat_objects $<TARGET_OBJECTS:remat_cell_${isa}>)
endforeach()

set(remat_needs OpenMP::OpenMP_C Threads::Threads ${CMAKE_DL_LIBS} m)
# Kernels, and the CUDA runtime that launches them, are in the program; cuBLAS is opened at run time (cuda/library.c).
if(REMAT_HAVE_CUDA)
  remat_cuda_objects(cuda_objects)
  add_custom_target(remat_cuda_kernels DEPENDS ${cuda_objects})
  list(APPEND remat_objects ${cuda_objects})
  list(APPEND remat_needs ${CUDART_STATIC_LIBRARY} ${CMAKE_DL_LIBS} rt)
endif()

add_library(remat STATIC ${remat_objects})
set_target_properties(remat PROPERTIES OUTPUT_NAME remat_internal)
target_include_directories(remat PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(remat PRIVATE ${remat_needs} INTERFACE OpenMP::OpenMP_C) # tests and tools use OpenMP themselves

# ---- What is installed -------------------------------------------------------------------------------------------------
set(remat_one_object ${CMAKE_CURRENT_BINARY_DIR}/remat.o)
add_custom_command(OUTPUT ${remat_one_object} DEPENDS ${remat_objects} COMMAND_EXPAND_LISTS VERBATIM
                   COMMAND ${CMAKE_LINKER} -r -o ${remat_one_object} ${remat_objects}
                   COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=remat_* ${remat_one_object}
                   COMMENT "Making libremat.a's names its own")
set_source_files_properties(${remat_one_object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
add_library(remat_archive STATIC ${remat_one_object})
set_target_properties(remat_archive PROPERTIES OUTPUT_NAME remat EXPORT_NAME remat LINKER_LANGUAGE C)
set(remat_public remat_archive)

if(REMAT_SHARED OR REMAT_TESTS)
  set(version_script ${CMAKE_CURRENT_LIST_DIR}/exports.map)
  add_library(remat_shared SHARED ${remat_objects})
  set_target_properties(remat_shared PROPERTIES OUTPUT_NAME remat VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR} EXPORT_NAME shared LINK_DEPENDS ${version_script})
  target_link_options(remat_shared PRIVATE -Wl,--version-script=${version_script})
  find_library(REMAT_LIBPTHREAD NAMES libpthread.so.0) # empty since glibc 2.34, which has its functions in libc
  find_library(REMAT_LIBDL NAMES libdl.so.2)
  if(SKBUILD AND REMAT_LIBPTHREAD AND REMAT_LIBDL) # a wheel
    target_sources(remat_shared PRIVATE ${CMAKE_SOURCE_DIR}/python/glibc_2_28.c)
    target_link_libraries(remat_shared PRIVATE -Wl,--no-as-needed ${REMAT_LIBPTHREAD} ${REMAT_LIBDL})
  endif()
  list(APPEND remat_public remat_shared)
endif()
foreach(library ${remat_public})
  target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_link_libraries(${library} PRIVATE ${remat_needs})
endforeach()
if(REMAT_HAVE_CUDA)
  foreach(library remat ${remat_public})
    add_dependencies(${library} remat_cuda_kernels)
  endforeach()
endif()
if(NOT REMAT_SHARED) # except for tests/abi, for which it was built
  list(REMOVE_ITEM remat_public remat_shared)
endif()
