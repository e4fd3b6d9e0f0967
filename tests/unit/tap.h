/*
 * TAP for unit programs: one file, no library.  A program calls tap_ok for each fact it checks and returns
 * tap_done() from main, which prints the plan: a program that dies before has no plan and counts as failed
 * (tests/tally).
 *
 * Programs run from the root of the repository.  One thread may call these at a time.
 */
#ifndef DS_TESTS_TAP_H
#define DS_TESTS_TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAP_USED __attribute__((unused))

static int tap_run_count, tap_fail_count, tap_planned = -1;

TAP_USED __attribute__((format(printf, 3, 0)))
static void tap_line(const char *head, const char *tail, const char *fmt, va_list ap)
{
	char text[2000];

	if (!tap_run_count)
		setvbuf(stdout, NULL, _IOLBF, 0); /* a crash loses no line */
	vsnprintf(text, sizeof(text), fmt, ap);
	for (char *p = text; *p; p++)
		if (*p == '\n' || *p == '#')
			*p = ' ';
	printf("%s %d - %s%s\n", head, ++tap_run_count, tail, text);
}

/* One test: its outcome and what it is about. */
TAP_USED __attribute__((format(printf, 2, 3))) static void tap_ok(bool ok, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	tap_line(ok ? "ok" : "not ok", "", fmt, ap);
	va_end(ap);
	tap_fail_count += !ok;
}

/* A test that cannot run here; says why. */
TAP_USED __attribute__((format(printf, 1, 2))) static void tap_skip(const char *fmt, ...)
{
	char why[1000];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (!tap_run_count)
		setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ok %d # SKIP %s\n", ++tap_run_count, why);
}

/* A remark beside the last test (values that differ, figures measured). */
TAP_USED __attribute__((format(printf, 1, 2))) static void tap_diag(const char *fmt, ...)
{
	va_list ap;

	fputs("# ", stdout);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

/* tap_ok(got == want) that shows both if they differ. */
TAP_USED static void tap_is_int(long long got, long long want, const char *what)
{
	tap_ok(got == want, "%s", what);
	if (got != want)
		tap_diag("got %lld, want %lld", got, want);
}

TAP_USED static void tap_is_str(const char *got, const char *want, const char *what)
{
	bool same = got && want ? !strcmp(got, want) : got == want;

	tap_ok(same, "%s", what);
	if (!same)
		tap_diag("got '%s', want '%s'", got ? got : "(null)", want ? want : "(null)");
}

/* States the number of tests beforehand; without it tap_done prints how many there were. */
TAP_USED static void tap_plan(int n)
{
	tap_planned = n;
	printf("1..%d\n", n);
}

/* Nothing after this can be tested. */
TAP_USED __attribute__((format(printf, 1, 2), noreturn)) static void tap_bail(const char *fmt, ...)
{
	va_list ap;

	fputs("Bail out! ", stdout);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	exit(1);
}

/* Ends the run: `return tap_done();` */
TAP_USED static int tap_done(void)
{
	if (tap_planned < 0)
		printf("1..%d\n", tap_run_count);
	if (fflush(stdout))
		return 1;
	return tap_fail_count || (tap_planned >= 0 && tap_planned != tap_run_count);
}

/* Under a sanitizer: whole models are then run with the fastest kernels only; each set of kernels has its own tests. */
TAP_USED static bool tap_slow(void)
{
	const char *s = getenv("DS_SANITIZE");

	return s && *s;
}

/* ---- where things lie ---- */

TAP_USED static const char *tap_build(void)
{
	const char *b = getenv("DS_BUILD");

	return b && *b ? b : "build";
}

/* A file of the shared data that is too big for the repository, into path; false (say so with tap_skip) where it is
 * absent. */
TAP_USED static bool tap_shared(char path[1000], const char *name)
{
	const char *dir = getenv("DS_SHARED");

	snprintf(path, 1000, "%s/%s", dir && *dir ? dir : "../shared", name);
	return access(path, R_OK) == 0;
}

/* The checkpoint tests/golden/NAME, unpacked under the build directory; its path, or the program ends. */
TAP_USED static void tap_unpack(char path[1000], const char *name)
{
	char command[1200];

	snprintf(path, 1000, "%s/golden/%s", tap_build(), name);
	snprintf(command, sizeof(command), "exec sh tests/unpack '%s' '%s' >&2", name, path);
	fflush(stdout);
	if (system(command) != 0)
		tap_bail("cannot unpack checkpoint '%s'", name);
}

#endif
