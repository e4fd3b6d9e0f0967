/*
 * Records on stderr: one write(2) each, so that lines of many processes never mix.  Text ("ds-x: message") or JSON
 * lines.
 */
#ifndef DS_BASE_LOG_H
#define DS_BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_ERROR = -1, LOG_WARN = 0, LOG_INFO = 1, LOG_DEBUG = 2 };

/* program: kept by reference.  json: --log-format json.  level: highest level printed. */
void log_init(const char *program, int json, int level);
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "ds-x: <err->text>"; returns err->code. */
int log_err(const struct ds_err *err);

#endif
