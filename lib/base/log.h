/*
 * Records on stderr: one write(2) each, so that lines of many processes never mix.  Text ("ds-x: message") or JSON
 * lines.
 */
#ifndef DS_BASE_LOG_H
#define DS_BASE_LOG_H

#include <stdbool.h>

#include "base/err.h"

enum log_level { LOG_ERROR = -1, LOG_WARN = 0, LOG_INFO = 1, LOG_DEBUG = 2 };

/* program: kept by reference.  json: --log-format json.  level: highest level printed. */
void log_init(const char *program, int json, int level);
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "ds-x: <err->text>"; returns err->code. */
int log_err(const struct ds_err *err);

/* An error's record made beforehand, for a signal handler.  log_init first.  False: no memory. */
struct log_record { char *p; size_t n; bool json; };
bool log_make_record(struct log_record *r, const char *text);
/* Writes it, with the time of now.  For signal handlers. */
void log_put_record(struct log_record *r);
void log_free_record(struct log_record *r);

#endif
