#include "ep/link.h"

int64_t link_there(const struct link *l, int64_t *busy_ns, size_t bytes, int64_t now)
{
	int64_t leaves = *busy_ns > now ? *busy_ns : now;

	if (l->rate)
		*busy_ns = leaves + (int64_t)((double)bytes * 1e9 / (double)l->rate);
	else
		*busy_ns = leaves;
	return *busy_ns + l->delay_ns;
}
