# A header of core/ includes what it names of the standard library, nlohmann/json and libtorch (the table: includes.awk).
# lint_headers_alone compiles with these precompiled, so a missing one shows here.
source "$(dirname "$0")/lib.sh"
while read -r line; do fault "$line"; done < <(find core -name '*.h' | sort | xargs -r awk -f "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/includes.awk" | sort)
while read -r header; do fault "$header: no #pragma once"; done < <(grep -rL '^#pragma once$' core --include='*.h' | sort)
finish
