/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Counting and printing of violations.
 */
#include "tests/device/strict_report.h"

#include <inttypes.h>
#include <stdarg.h>

const char *const strict_clause_id[STRICT_CLAUSES] = {
#define CLAUSE(symbol, id, strength, text) [symbol] = (id),
#include "tests/device/strict_clauses.def"
#undef CLAUSE
};

const char *const strict_clause_strength[STRICT_CLAUSES] = {
#define CLAUSE(symbol, id, strength, text) [symbol] = (strength),
#include "tests/device/strict_clauses.def"
#undef CLAUSE
};

const char *const strict_clause_text[STRICT_CLAUSES] = {
#define CLAUSE(symbol, id, strength, text) [symbol] = (text),
#include "tests/device/strict_clauses.def"
#undef CLAUSE
};

void strict_violate(struct strict_report *report, enum strict_clause clause, const char *format,
                    ...)
{
    report->violations++;
    if (report->violated[clause]++ > 0) {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(report->first[clause], STRICT_CONTEXT_BYTES, format, args);
    va_end(args);
    if (report->loud) {
        fprintf(stderr, "violation %s: %s (%s)\n", strict_clause_id[clause], report->first[clause],
                strict_clause_text[clause]);
    }
}

static unsigned count_nonzero(const uint64_t counters[STRICT_CLAUSES])
{
    unsigned n = 0;
    for (unsigned i = 0; i < STRICT_CLAUSES; i++) {
        n += counters[i] != 0;
    }
    return n;
}

unsigned strict_report_checked(const struct strict_report *report)
{
    return count_nonzero(report->checked);
}

unsigned strict_report_violated(const struct strict_report *report)
{
    return count_nonzero(report->violated);
}

void strict_report_print(const struct strict_report *report, FILE *out)
{
    for (unsigned i = 0; i < STRICT_CLAUSES; i++) {
        if (report->violated[i] != 0) {
            fprintf(out, "%s violated %" PRIu64 " times: %s First: %s\n", strict_clause_id[i],
                    report->violated[i], strict_clause_text[i], report->first[i]);
        }
    }
}

static void json_string(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', out);
        }
        fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
    }
    fputc('"', out);
}

void strict_report_json(const struct strict_report *report, FILE *out)
{
    const char *comma = "";
    fputs("\"violations\":[", out);
    for (unsigned i = 0; i < STRICT_CLAUSES; i++) {
        if (report->violated[i] != 0) {
            fprintf(out, "%s{\"clause\":\"%s\",\"strength\":\"%s\",\"count\":%" PRIu64 ",\"text\":",
                    comma, strict_clause_id[i], strict_clause_strength[i], report->violated[i]);
            json_string(strict_clause_text[i], out);
            fputs(",\"first\":", out);
            json_string(report->first[i], out);
            fputc('}', out);
            comma = ",";
        }
    }
    fputs("],\"checked\":{", out);
    comma = "";
    for (unsigned i = 0; i < STRICT_CLAUSES; i++) {
        if (report->checked[i] != 0) {
            fprintf(out, "%s\"%s\":%" PRIu64, comma, strict_clause_id[i], report->checked[i]);
            comma = ",";
        }
    }
    fputc('}', out);
}
