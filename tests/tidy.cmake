# Checks of the source text itself; the architecture is the data in tidy/layers.txt.
ddprun_test(NAME tidy_test
            SOURCES tidy/tidy_test.cc tidy/rules.cc tidy/names.cc tidy/source_text.cc tidy/layers.cc
            LIBRARIES ddprun_flags
            LABELS tidy)

if(DDPRUN_SANITIZE)
  return()
endif()

# Planted defects that no longer meet the source prove nothing.
add_test(NAME mutants_test COMMAND python3 -B ${PROJECT_SOURCE_DIR}/tests/mutation/mutate.py --check)
set_tests_properties(mutants_test PROPERTIES LABELS tidy)

# The scripts of deploy/, on a machine made of stand-ins.
add_test(NAME deploy_test
         COMMAND bash ${PROJECT_SOURCE_DIR}/tests/deploy/deploy_test.sh ${PROJECT_SOURCE_DIR})
set_tests_properties(deploy_test PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS tidy)
