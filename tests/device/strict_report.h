/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the strict device found: for each clause of tests/clauses.tsv how often it was put to the
 * test, how often it was violated, and the first violation in words.
 */
#ifndef SLUICE_TESTS_STRICT_REPORT_H
#define SLUICE_TESTS_STRICT_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum strict_clause {
#define CLAUSE(symbol, id, strength, text) symbol,
#include "tests/device/strict_clauses.def"
#undef CLAUSE
    STRICT_CLAUSES,
};

#define STRICT_CONTEXT_BYTES 160u

struct strict_report {
    uint64_t checked[STRICT_CLAUSES];
    uint64_t violated[STRICT_CLAUSES];
    uint64_t violations; /* of all clauses */
    char first[STRICT_CLAUSES][STRICT_CONTEXT_BYTES];
    bool loud; /* print each first violation on stderr as it happens */
};

extern const char *const strict_clause_id[STRICT_CLAUSES];
extern const char *const strict_clause_strength[STRICT_CLAUSES];
extern const char *const strict_clause_text[STRICT_CLAUSES];

/* Counts one violation and keeps the words of the first. */
void strict_violate(struct strict_report *report, enum strict_clause clause, const char *format,
                    ...) __attribute__((format(printf, 3, 4)));

/* Clauses checked at least once, and violated at least once. */
unsigned strict_report_checked(const struct strict_report *report);
unsigned strict_report_violated(const struct strict_report *report);

/* One line for each violated clause: id, count, what it asks, the first violation. */
void strict_report_print(const struct strict_report *report, FILE *out);

/* "violations":{...},"checked":N as members of a JSON object. */
void strict_report_json(const struct strict_report *report, FILE *out);

/* The condition must hold; the words after it say what was seen instead. True if it does. */
#define STRICT_CHECK(report, clause, condition, ...)                                               \
    ({                                                                                             \
        const bool strict_held = (condition);                                                      \
        (report)->checked[clause]++;                                                               \
        if (!strict_held) {                                                                        \
            strict_violate((report), (clause), __VA_ARGS__);                                       \
        }                                                                                          \
        strict_held;                                                                               \
    })

#endif
