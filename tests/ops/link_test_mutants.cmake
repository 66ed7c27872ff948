# The mutants are compiled twice, like the ops they imitate.
file(GLOB mutants CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/mutants/*.c)
add_library(mutants_f32 OBJECT ${mutants})
add_library(mutants_f64 OBJECT ${mutants})
target_compile_definitions(mutants_f64 PRIVATE RM_REAL_DOUBLE)
foreach(mutants mutants_f32 mutants_f64)
  target_include_directories(${mutants} PRIVATE ${CMAKE_SOURCE_DIR})
endforeach()
target_sources(${target} PRIVATE $<TARGET_OBJECTS:mutants_f32> $<TARGET_OBJECTS:mutants_f64>)
