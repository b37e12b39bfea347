"""Uses `hourglass mcp` through the protocol's official client, in the working directory; prints what it saw as JSON.

usage: python mcp_client.py PATH_OF_HOURGLASS
"""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(binary: str) -> None:
    server = StdioServerParameters(command=binary, args=["mcp", "--allow-run"])
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        hello = await session.initialize()
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        records = await session.call_tool("list_records", {})
        first = records.structured_content["records"][0]
        shown = await session.call_tool("show_record", {"record": first["id"]})
        error = await session.call_tool("show_record", {"record": "../../etc/passwd"})
        run = await session.call_tool(
            "run_replay", {"cases": ["selected:decode:16"], "model": "synthetic:tiny", "iterations": 1}
        )
        print(
            json.dumps(
                {
                    "server": hello.server_info.name,
                    "read_only": sorted(name for name, tool in tools.items() if tool.annotations.read_only_hint),
                    "record": shown.structured_content["evidence"][0]["sha256"],
                    "error": error.is_error,
                    "evidence_of_run": run.structured_content["evidence"][0]["schema"],
                }
            )
        )


if len(sys.argv) != 2:
    sys.exit(__doc__)
asyncio.run(main(sys.argv[1]))
