// The report's sections in order: what each answers, how to get it, what makes it. Not here: how they are made.

const SECTIONS = [
    { id: "next", title: "What to change next", question: "What limits this request, and what could be gained?", how: "`hourglass find`", make: verdictSection },
    { id: "climb", title: "The ladder, walked", question: "Which rung kept its promise on this machine?", how: "`hourglass find --climb`", make: climbSection },
    { id: "clock", title: "Request clock", question: "Did the request get faster?", how: "`hourglass bench --suite ladder --json-output FILE`", make: clockSection },
    { id: "phases", title: "Prefill and decode", question: "Which phase is the larger one?", how: "`hourglass bench --json-output FILE`", make: phaseSection },
    { id: "operators", title: "Operators", question: "Which group of operators costs the most at a shape?", how: "`hourglass replay --case selected:decode:128 --json-output FILE`", make: operatorSection },
    { id: "roofline", title: "How near the machine's limit", question: "How far is each operator from what this machine can do?", how: "`hourglass ceilings --json-output FILE`, beside a replay", make: rooflineSection },
    { id: "shapes", title: "Two kernels at a request's shapes", question: "Would another kernel of the same operator take less, and where?", how: "`hourglass replay --shapes RECORD --compare KERNEL,KERNEL --json-output FILE`", make: shapesSection },
    { id: "timeline", title: "Timeline", question: "Is everybody busy, and why not?", how: "`hourglass timeline --out TRACE --json-output FILE`", make: timelineSection },
    { id: "kernels", title: "Kernels and source lines", question: "Which kernel dominates, what limits it, which line is expensive?", how: "`hourglass capture`, then `hourglass reduce` and `hourglass lines`", make: kernelSection },
    { id: "wiring", title: "Wiring", question: "Was the kernel that was meant really called?", how: "`hourglass wiring --json-output FILE`", make: wiringSection },
    { id: "memory", title: "Memory", question: "What did the request hold at its peak?", how: "`hourglass bench --json-output FILE`", make: memorySection },
    { id: "comparisons", title: "Comparisons", question: "Did the change help, and how much of it arrived?", how: "`hourglass compare BEFORE AFTER --json-output FILE`", make: comparisonSection },
    { id: "decisions", title: "Decisions", question: "What was decided, by which rule, on which evidence?", how: "`hourglass decide open`, later `hourglass decide close`; give the ledger to the report", make: decisionSection },
    { id: "conditions", title: "Conditions and bias", question: "Under what was it measured, and what could mislead?", how: "any record of a measurement", make: conditionsSection },
];
