#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt.h"

int parse_int(const char *s, int64_t min, int64_t max, int64_t *out)
{
	char *end;
	long long v;

	errno = 0;
	v = strtoll(s, &end, 10);
	if (end == s || *end || errno || (unsigned char)*s <= ' ' || v < min || v > max)
		return -1;
	*out = v;
	return 0;
}

int parse_size(const char *s, uint64_t *out)
{
	static const char suffixes[] = "KMGT";
	const char *at;
	unsigned long long v;
	unsigned shift = 0;
	char *end;

	if (*s < '0' || *s > '9')
		return -1;
	errno = 0;
	v = strtoull(s, &end, 10);
	if (errno)
		return -1;
	if (*end && (at = strchr(suffixes, *end)) != NULL) {
		shift = 10 * (unsigned)(at - suffixes + 1);
		end++;
	}
	if (*end || (shift && v >> (64 - shift)))
		return -1;
	*out = v << shift;
	return 0;
}

int parse_real(const char *s, double min, double max, double *out)
{
	char *end;
	double v;

	if ((unsigned char)*s <= ' ' || strpbrk(s, "xX"))
		return -1;
	v = strtod(s, &end);
	if (end == s || *end || !isfinite(v) || v < min || v > max)
		return -1;
	*out = v;
	return 0;
}

int parse_time(const char *s, int64_t *ns)
{
	static const struct { const char *name; double ns; } units[] = {
		{ "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 }, { "m", 60e9 }, { "h", 3600e9 }, { "", 1e9 },
	};
	char *end;
	double v;

	if (*s < '0' || *s > '9' || strpbrk(s, "xX"))
		return -1;
	v = strtod(s, &end);
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strcmp(end, units[i].name) == 0) {
			v *= units[i].ns;
			if (!(v < 9e18))
				return -1;
			*ns = (int64_t)v;
			return 0;
		}
	return -1;
}
